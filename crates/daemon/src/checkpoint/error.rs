//! What can go wrong when images are taken.

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(
        "process {pid} is an ancestor of the command that asks for its checkpoint; ask from outside of it, such as another terminal"
    )]
    OfTheAsker { pid: i32 },

    #[error("process {pid} ended while it was to be checkpointed")]
    ProcessEnded { pid: i32 },

    #[error(
        "process {pid} was started without Rekindle, so that it can only be taken by the driver; use `--mode driver`"
    )]
    NotSandboxed { pid: i32 },

    #[error("process {pid} belongs to the sandbox {name:?}; checkpoint it by that name")]
    InSandbox { pid: i32, name: String },

    #[error(
        "{name} has written to pinned memory while an image of that was made behind its GPU's work; try again, which waits for the GPU"
    )]
    PinnedWritten { name: String },

    #[error(
        "no process of {name} uses a GPU, so that there is nothing for the driver to take; `--mode auto` takes its CPU half alone"
    )]
    NoGpuProcess { name: String },
}
