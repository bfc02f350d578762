//! The command line, defined once: parsing, help, man pages and completions come from here.

mod checkpoint;
mod choices;
mod functions;
mod image;
mod migrate;
mod output;
mod restore;
mod run;
mod sandbox;
mod service;
mod tenant;
mod time;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::engine::ArgValueCandidates;

pub use checkpoint::CheckpointArguments;
pub use choices::{EngineArgument, LevelArgument, ModeArgument, OrderArgument};
pub use functions::{AppArguments, CallArguments, ConvertArguments};
pub use image::ImageCommand;
pub use migrate::{MigrateArguments, NodeCommand};
pub use output::{LogArguments, StopArguments};
pub use restore::{ProfileArguments, RestoreArguments};
pub use run::{ExecArguments, RunArguments};
pub use sandbox::{
    LimitArguments, NetworkArguments, PortionArguments, SandboxArguments, SettingArguments,
    TerminalArguments, VolumeArguments,
};
pub use service::{ScaleArguments, ServiceArguments, StagesArgument, TenantArgument, WorkflowArguments};
pub use tenant::TenantCommand;

use crate::completion;
use crate::copy::End;
use crate::filter::Filter;

/// Run GPU programs in sandboxes, take images of them while they run, and bring them back.
#[derive(Debug, Parser)]
#[command(name = "rekindle", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Arguments {
    #[command(flatten)]
    pub paths: PathArguments,
    /// Print one JSON document on standard output; its fields are stable.
    #[arg(long, global = true)]
    pub json: bool,
    /// Show what a checkpoint, a sleep or a waking was made of, and how long each phase took.
    #[arg(short, long, global = true)]
    pub verbose: bool,
    #[command(subcommand)]
    pub command: Command,
}

/// Where the daemon keeps what; the same for both programs.
#[derive(Clone, Debug, Args)]
pub struct PathArguments {
    /// Socket of the daemon.
    #[arg(long, global = true, value_name = "PATH", env = rekindle_daemon::SOCKET_VARIABLE)]
    pub socket: Option<PathBuf>,
    /// Directory for images, records and logs.
    #[arg(long, global = true, value_name = "DIR", env = rekindle_daemon::STATE_VARIABLE)]
    pub state: Option<PathBuf>,
    /// Directory in memory for what runs.
    #[arg(long, global = true, value_name = "DIR", env = rekindle_daemon::RUNS_VARIABLE)]
    pub run_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a program in a new sandbox.
    ///
    /// Without -d its output is shown, signals are passed on to it, and its exit code becomes that of this command
    /// (128 plus the signal's number if a signal ended it).
    Run(RunArguments),
    /// List sandboxes: those that run, and with -a also the last 100 that have ended.
    Ps {
        /// Show those that have ended too.
        #[arg(short, long)]
        all: bool,
        /// Show only what has this: state=STATE or name=PART. One key given several times means any of its values.
        ///
        /// A state that only ended sandboxes have shows those without -a.
        #[arg(short, long = "filter", value_name = "KEY=VALUE")]
        filters: Vec<Filter>,
    },
    /// Show what programs use, every second: processors, memory of the host and of the GPU, what goes to the GPU and back.
    ///
    /// Without names all that run are shown. It ends when all that were named have ended. With --json, a document a line.
    Stats {
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
        names: Vec<String>,
        /// Show it once.
        #[arg(long)]
        no_stream: bool,
    },
    /// Show what a sandbox's program has printed.
    Logs(LogArguments),
    /// End sandboxes: SIGTERM first, SIGKILL after 5 seconds.
    Kill {
        #[arg(required = true, value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
        names: Vec<String>,
        /// Send this signal in place of ending the sandbox.
        #[arg(short, long, value_name = "NUMBER")]
        signal: Option<i32>,
    },
    /// End sandboxes as `kill` does, with as much time for the program as you say.
    Stop(StopArguments),
    /// Run a command beside a sandbox's program, where it sees what the program sees.
    ///
    /// Standard input, output and error are passed on, and its exit code becomes that of this command. It is no part of
    /// the program: a checkpoint does not take it.
    Exec(ExecArguments),
    /// Come to the terminal of a program that was started with one (`run -t`).
    ///
    /// What is typed goes to the program, Ctrl-C too. Ctrl-P Ctrl-Q lets go of it; it goes on, as it does when the terminal
    /// here goes away. If the program ends, its exit code becomes that of this command.
    Attach {
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
        name: String,
    },
    /// Copy files or directories into a sandbox or out of it.
    ///
    /// One end is SANDBOX:PATH, the other a path here. To keep its name, copy it into a directory.
    Cp {
        #[arg(value_name = "FROM", value_parser = End::parse)]
        from: End,
        #[arg(value_name = "TO", value_parser = End::parse)]
        to: End,
    },
    /// Wait until a sandbox has ended, print its exit code and end with that.
    Wait {
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::known))]
        name: String,
    },
    /// Make an emulated GPU for a container: a device by the name `rekindle.dev/gpu=NAME`.
    ///
    /// `podman --runtime runc run --device rekindle.dev/gpu=NAME` gives it to a container, one at a time. `kill NAME`
    /// removes it.
    Device {
        name: String,
        /// The GPU: emulated[:SETTINGS].
        #[arg(long, value_name = "GPU")]
        gpu: Option<String>,
    },
    /// Take an image of a running program.
    Checkpoint(CheckpointArguments),
    /// Continue the program of an image in a new sandbox; that of a container in a new container.
    ///
    /// Without -d its output is then shown, as `run` does.
    Restore(RestoreArguments),
    /// Learn in which order a program uses its GPU buffers, so that later restores of the image load them so.
    ///
    /// Restores the image in a sandbox of its own, runs the command (on this side, not in the sandbox) that has the
    /// program do what it is for, keeps the order with the image, and ends the sandbox. The command finds the sandbox's
    /// name in REKINDLE_SANDBOX.
    Profile(ProfileArguments),
    /// Change what a program has of GPU contexts that it shares, while it runs.
    Limits {
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
        name: String,
        #[command(flatten)]
        portion: PortionArguments,
    },
    /// Give a program's GPU back while it needs none. It wakes by itself at its next GPU call.
    Sleep {
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
        name: String,
        /// Where its GPU memory goes.
        #[arg(long, default_value = "host")]
        level: LevelArgument,
    },
    /// Have a program that sleeps ready for its next GPU call.
    Wake {
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
        name: String,
    },
    /// Move a running program to another GPU of this machine, or to another node. It stands still for a moment, and notices
    /// nothing.
    ///
    /// Its GPU addresses, processes and name stay as they are. The other GPU is one of the same model.
    Migrate(MigrateArguments),
    /// Have this node and others know each other, so that programs can move between them.
    Node {
        #[command(subcommand)]
        command: NodeCommand,
    },
    /// Have HTTP requests that come to a port go to instances of an image, which come and go with them.
    ///
    /// Returns once an instance listens; its program needs to know nothing of services. With the name of a service that is
    /// there, instances of the image take the place of those that it has, without a failed request; if none comes to
    /// listen, all stays as it was.
    Serve {
        /// The image of a program that listens on a TCP port.
        #[arg(add = ArgValueCandidates::new(completion::images))]
        image: String,
        /// Name of the service. Its instances are the sandboxes NAME-1, NAME-2 and so on; those of a tenant's service are
        /// TENANT@NAME-1 and so on.
        #[arg(long)]
        name: String,
        #[command(flatten)]
        service: ServiceArguments,
    },
    /// Have HTTP requests that come to a port go through a workflow: calls of services, each with results of others.
    ///
    /// `rekindle deploy` serves those of an app. With the name of a workflow that is there, requests that come from then on go
    /// through the new one.
    ServeWorkflow {
        /// The graph (JSON), as docs/architecture/workflows.md has it.
        graph: PathBuf,
        /// Name of the workflow. No service has it.
        #[arg(long)]
        name: String,
        #[command(flatten)]
        workflow: WorkflowArguments,
    },
    /// List services and workflows: their instances by stage, and their requests.
    Services {
        /// Those of this tenant alone; none: those of nobody.
        #[arg(long, value_name = "TENANT|none", add = ArgValueCandidates::new(completion::tenants))]
        tenant: Option<String>,
    },
    /// Print where the daemon's page is, and open it where there is a desktop.
    ///
    /// It shows services with their instances, who has how much GPU memory, sandboxes and images.
    Page {
        /// Only print it.
        #[arg(long)]
        no_open: bool,
    },
    /// Change how many instances a service has, and how they sleep.
    #[command(group = ArgGroup::new("what").required(true).multiple(true).args(["min", "max", "stages"]))]
    Scale {
        #[arg(value_name = "SERVICE", add = ArgValueCandidates::new(completion::services))]
        name: String,
        #[command(flatten)]
        tenant: TenantArgument,
        #[command(flatten)]
        scale: ScaleArguments,
        #[command(flatten)]
        stages: StagesArgument,
    },
    /// Have a service refuse requests, answer those that it has, and end its instances. `serve` has it go on.
    Drain {
        #[arg(value_name = "SERVICE", add = ArgValueCandidates::new(completion::services))]
        name: String,
        #[command(flatten)]
        tenant: TenantArgument,
    },
    /// Remove a service, once the requests that it has are answered and its instances have ended.
    Unserve {
        #[arg(value_name = "SERVICE", add = ArgValueCandidates::new(completion::services))]
        name: String,
        #[command(flatten)]
        tenant: TenantArgument,
        /// End the instances at once, whatever they do.
        #[arg(long)]
        now: bool,
    },
    /// Make tenants: names that services belong to, whose clients show tokens, and which have a part of the machine.
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Make images of functions, and serve them.
    ///
    /// The file has an app of the Python package `rekindle`, or is the manifest (TOML) of libraries with functions without
    /// Python. Deploying it again has new instances take the place of those
    /// that there are, without a failed call.
    Deploy {
        #[command(flatten)]
        app: AppArguments,
    },
    /// Deploy a file of functions, and again whenever it or what belongs to it changes, until this command is ended.
    ///
    /// What is deployed stays.
    Dev {
        #[command(flatten)]
        app: AppArguments,
    },
    /// Make an app of a model: a Python file to deploy, and the model's weights as declared data.
    ///
    /// The model is a program of torch.export's (.pt2), an ONNX model, or a directory with config.json and safetensors, as
    /// Hugging Face has it. The app answers the Open Inference Protocol, or OpenAI's if it is a language model.
    Convert(ConvertArguments),
    /// Call a function, a method of a class or a workflow that is deployed, and print its result (JSON).
    ///
    /// What it raises is printed with its traceback, and ends the command with 1.
    Call(CallArguments),
    /// Show where the time of a sandbox's last checkpoint or restore went, and draw it.
    Trace {
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::known))]
        name: String,
        /// Where the picture goes (SVG); SANDBOX.trace.svg in this directory if not given.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Also write the trace for chrome://tracing or ui.perfetto.dev.
        #[arg(long, value_name = "FILE")]
        chrome: Option<PathBuf>,
    },
    /// Tell what happens, a line each, until this command is ended: states of sandboxes, images made and removed.
    ///
    /// With --json each line is a document.
    Events,
    /// Make images for others to start from.
    #[command(subcommand)]
    Image(ImageCommand),
    /// List images.
    Images,
    /// Show what is inside an image.
    Inspect {
        #[arg(add = ArgValueCandidates::new(completion::images))]
        image: String,
    },
    /// Read an image through and check every byte of it.
    Verify {
        #[arg(add = ArgValueCandidates::new(completion::images))]
        image: String,
    },
    /// Remove ended sandboxes with their logs, and images.
    ///
    /// A name that a sandbox and an image have is refused; --sandbox, or `rmi`, says which is meant.
    Rm {
        #[arg(required = true, value_name = "NAME", add = ArgValueCandidates::new(completion::removable))]
        names: Vec<String>,
        /// The names are of sandboxes.
        #[arg(long)]
        sandbox: bool,
    },
    /// Write an image as one file, which `import` takes in elsewhere.
    Export {
        #[arg(add = ArgValueCandidates::new(completion::images))]
        image: String,
        /// The file; `-` is standard output.
        file: PathBuf,
    },
    /// Take in an image that `export` has written, checked whole.
    ///
    /// What it has in common with other images is there once.
    Import {
        /// The file; `-` is standard input.
        file: PathBuf,
        /// Its name; the one that it was exported under if none is given.
        name: Option<String>,
    },
    /// Give an image another name. Both have the same contents, and each can be removed.
    Tag {
        #[arg(add = ArgValueCandidates::new(completion::images))]
        image: String,
        name: String,
    },
    /// Remove images.
    Rmi {
        #[arg(required = true, value_name = "IMAGE", add = ArgValueCandidates::new(completion::images))]
        images: Vec<String>,
    },
    /// Remove all ended sandboxes with their logs.
    Prune {
        /// Remove all images, too, that no sandbox runs from and no service has.
        #[arg(long)]
        images: bool,
    },
    /// Say what this machine has, what is needed, and how to mend what is missing.
    Doctor,
    /// End the daemon. Sandboxes go on, and the next command starts a daemon that finds them again.
    Shutdown,
    /// Print completions for a shell, which then completes names of sandboxes and images too.
    Completions { shell: clap_complete::Shell },
    /// Write the man pages into a directory.
    Man { directory: PathBuf },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_program_keeps_its_own_options() {
        let parsed = Arguments::parse_from(["rekindle", "run", "-d", "--", "python3", "-d", "--json"]);
        assert!(!parsed.json);
        let Command::Run(RunArguments { sandbox, command, .. }) = parsed.command else { panic!("not run") };
        assert!(sandbox.detach);
        assert_eq!(command, ["python3", "-d", "--json"]);
    }
}
