//! What can go wrong with sandboxes and their processes.

use crate::error::Error;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("there is no sandbox named {name:?}; `rekindle ps -a` lists them")]
    Unknown { name: String },

    #[error("a sandbox named {name:?} exists; choose another name, or end that one first")]
    NameInUse { name: String },

    #[error("a sandbox cannot be named {shown:?}: {reason}")]
    BadName { shown: String, reason: &'static str },

    #[error("the command is empty; give a program after `--`")]
    NoCommand,

    #[error("the sandbox {name:?} is not running ({state}); only a running one can be {wanted}")]
    NotRunning { name: String, state: String, wanted: &'static str },

    #[error("the sandbox {name:?} is {state}; only an ended one can be removed: `rekindle stop` ends it")]
    StillRuns { name: String, state: String },

    #[error("the program of {name:?} ended while it was to be {wanted}")]
    EndedMeanwhile { name: String, wanted: &'static str },

    #[error("process {pid} of the program ended while that was to be {wanted}: {cause}")]
    MemberEnded {
        pid: i32,
        wanted: &'static str,
        #[source]
        cause: Box<Error>,
    },

    #[error("process {pid} ended while the program, of which it used a GPU, was to be checkpointed")]
    UserEnded { pid: i32 },

    #[error(
        "the GPU worker of {name:?} is gone ({how}), so its GPU memory is lost; start or restore the program anew"
    )]
    WorkerDead { name: String, how: String },

    #[error(
        "{name:?} is a container's GPU, so that it cannot be {wanted}; that is for the container and its engine"
    )]
    ContainerDevice { name: String, wanted: &'static str },
}
