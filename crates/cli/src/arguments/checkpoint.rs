//! What an image is taken of, and what comes after.

use clap::{ArgGroup, Args};
use clap_complete::engine::ArgValueCandidates;

use super::time::seconds;
use super::{EngineArgument, ModeArgument};
use crate::completion;

/// A checkpoint: what of, into which image.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("after").required(true).args(["leave_running", "stop"]))]
pub struct CheckpointArguments {
    /// The sandbox's name, as `ps` shows it.
    #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running), required_unless_present_any = ["pid", "container"])]
    pub name: Option<String>,
    /// A process that was started without Rekindle, with all its children.
    #[arg(long, value_name = "PID", conflicts_with = "name")]
    pub pid: Option<i32>,
    /// A container of Podman's or containerd's, with its writable layer. Its runtime must have CRIU (`podman
    /// --runtime runc run`).
    #[arg(long, value_name = "CONTAINER", conflicts_with_all = ["name", "pid", "mode"])]
    pub container: Option<String>,
    /// Who runs the container, where several have one of that name.
    #[arg(long, value_name = "ENGINE", requires = "container")]
    pub engine: Option<EngineArgument>,
    /// With --pid: `driver` insists that the program uses a GPU, `auto` takes any.
    #[arg(long, default_value = "auto", conflicts_with = "name")]
    pub mode: ModeArgument,
    /// How long the driver may wait for the GPU's work to end, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub gpu_wait: f64,
    /// Name of the new image.
    #[arg(long, value_name = "IMAGE")]
    pub to: String,
    /// Let the program go on.
    #[arg(long)]
    pub leave_running: bool,
    /// End the program once the image is safe.
    #[arg(long)]
    pub stop: bool,
    /// Restore the image once beside the program, in a sandbox that never runs; if that fails there is no image, and
    /// the program goes on. Not for containers of containerd's.
    #[arg(long)]
    pub prove: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::arguments::Arguments;

    #[test]
    fn a_checkpoint_says_what_comes_after() {
        let parse = |rest: &[&str]| {
            Arguments::try_parse_from(["rekindle", "checkpoint", "n", "--to", "i"].iter().chain(rest)).is_ok()
        };
        assert!(parse(&["--stop"]) && parse(&["--leave-running"]));
        assert!(!parse(&[]) && !parse(&["--stop", "--leave-running"]));
        assert!(!parse(&["--stop", "--pid", "1"]) && !parse(&["--stop", "--mode", "driver"]));
        let by_pid = |rest: &[&str]| {
            let words = ["rekindle", "checkpoint", "--to", "i", "--stop"];
            Arguments::try_parse_from(words.iter().chain(rest)).is_ok()
        };
        assert!(by_pid(&["--pid", "1"]) && by_pid(&["--pid", "1", "--mode", "driver"]) && !by_pid(&[]));
        assert!(!by_pid(&["--pid", "1", "--gpu-wait", "0"]));
        assert!(by_pid(&["--container", "web"]) && !by_pid(&["--container", "web", "--pid", "1"]));
    }
}
