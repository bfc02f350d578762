//! The command line, defined once: parsing, help, man pages and completions come from here.

mod choices;
mod sandbox;
mod service;
mod tenant;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use jiff::{SignedDuration, Timestamp};
use rekindle_protocol::mounts::Overlay;
use rekindle_protocol::network::Port;

pub use choices::{EngineArgument, LevelArgument, ModeArgument, OrderArgument};
pub use sandbox::{
    LimitArguments, NetworkArguments, PortionArguments, SandboxArguments, SettingArguments,
    TerminalArguments, VolumeArguments,
};
pub use service::{ScaleArguments, ServiceArguments};
pub use tenant::TenantCommand;

use crate::completion;
use crate::copy::End;
use crate::exec::variable;
use crate::filter::Filter;
use crate::recovery::RecoveryArguments;

/// Run GPU programs in sandboxes, take images of them while they run, and bring them back.
#[derive(Debug, Parser)]
#[command(name = "rekindle", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Arguments {
    #[command(flatten)]
    pub places: PlaceArguments,
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
pub struct PlaceArguments {
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
    Run {
        #[command(flatten)]
        sandbox: SandboxArguments,
        #[command(flatten)]
        network: NetworkArguments,
        #[command(flatten)]
        limits: LimitArguments,
        #[command(flatten)]
        setting: SettingArguments,
        #[command(flatten)]
        volumes: VolumeArguments,
        /// Give the program a private layer over a directory, which takes what it writes there; may be given again.
        ///
        /// The layer is in memory, holds at most SIZE (1G if none is given), is kept in images, and goes with the sandbox.
        /// Each restored program has its own.
        #[arg(long = "overlay", value_name = "DIR[:SIZE]", conflicts_with = "from")]
        overlays: Vec<Overlay>,
        /// How its GPU half will be taken: through Rekindle's own libcuda (sandbox), or by the driver's own checkpoint.
        #[arg(long, default_value = "sandbox")]
        mode: ModeArgument,
        /// The framework image to start from, whose program becomes this one.
        #[arg(long, value_name = "IMAGE", conflicts_with = "mode", add = ArgValueCandidates::new(completion::images))]
        from: Option<String>,
        /// Give the program what a checkpoint cannot take, and what it is therefore not given else.
        ///
        /// While it uses that it cannot be checkpointed. May be given several times.
        #[arg(long, value_name = "NAME", conflicts_with = "from", value_parser = clap::builder::PossibleValuesParser::new(rekindle_sandbox::withheld::names()))]
        allow: Vec<String>,
        #[command(flatten)]
        recovery: RecoveryArguments,
        #[command(flatten)]
        terminal: TerminalArguments,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
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
    Logs {
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::known))]
        name: String,
        /// Go on until the program has ended.
        #[arg(short, long)]
        follow: bool,
        /// Only what was printed since then: a time such as 2030-01-31T12:00:00Z, or how long ago, such as 10m.
        #[arg(long, value_name = "TIME", value_parser = since)]
        since: Option<u64>,
        /// Only the last lines, so many of them.
        #[arg(short = 'n', long, value_name = "LINES")]
        tail: Option<u64>,
        /// Show before each line when it was printed.
        #[arg(short, long)]
        timestamps: bool,
    },
    /// End sandboxes: SIGTERM first, SIGKILL after 5 seconds.
    Kill {
        #[arg(required = true, value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
        names: Vec<String>,
        /// Send this signal in place of ending the sandbox.
        #[arg(short, long, value_name = "NUMBER")]
        signal: Option<i32>,
    },
    /// End sandboxes as `kill` does, with as much time for the program as you say.
    Stop {
        #[arg(required = true, value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
        names: Vec<String>,
        /// How long each program has between SIGTERM and SIGKILL, in seconds.
        #[arg(short, long, value_name = "SECONDS", default_value_t = 10.0, value_parser = grace)]
        timeout: f64,
    },
    /// Run a command beside a sandbox's program, where it sees what the program sees.
    ///
    /// Standard input, output and error are passed on, and its exit code becomes that of this command. It is no part of
    /// the program: a checkpoint does not take it.
    Exec {
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
        name: String,
        /// A variable of its environment, beside the program's own; NAME alone takes its value from here.
        #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
        environment: Vec<(String, String)>,
        /// Its working directory; the program's if none is given.
        #[arg(short = 'w', long = "workdir", value_name = "DIR")]
        directory: Option<String>,
        /// The command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
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
    /// One end is SANDBOX:PATH, the other a path here. What is to be called as before is copied into a directory.
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
    #[command(group = ArgGroup::new("after").required(true).args(["leave_running", "stop"]))]
    Checkpoint {
        /// The sandbox's name, as `ps` shows it.
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running), required_unless_present_any = ["pid", "container"])]
        name: Option<String>,
        /// A process that was started without Rekindle, with all its children.
        #[arg(long, value_name = "PID", conflicts_with = "name")]
        pid: Option<i32>,
        /// A container of Podman's or containerd's, with its writable layer. Its runtime must have CRIU (`podman
        /// --runtime runc run`).
        #[arg(long, value_name = "CONTAINER", conflicts_with_all = ["name", "pid", "mode"])]
        container: Option<String>,
        /// Who runs the container, where several have one of that name.
        #[arg(long, value_name = "ENGINE", requires = "container")]
        engine: Option<EngineArgument>,
        /// With --pid: `driver` insists that the program uses a GPU, `auto` takes any.
        #[arg(long, default_value = "auto", conflicts_with = "name")]
        mode: ModeArgument,
        /// How long the driver may wait for the GPU's work to end, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
        gpu_wait: f64,
        /// Name of the new image.
        #[arg(long, value_name = "IMAGE")]
        to: String,
        /// Let the program go on.
        #[arg(long)]
        leave_running: bool,
        /// End the program once the image is safe.
        #[arg(long)]
        stop: bool,
        /// Restore the image once beside the program, in a sandbox that never runs; if that fails there is no image, and
        /// the program goes on. Not for containers of containerd's.
        #[arg(long)]
        prove: bool,
    },
    /// Continue the program of an image in a new sandbox; that of a container in a new container.
    ///
    /// Without -d its output is then shown, as `run` does.
    Restore {
        /// The image's name, as `images` shows it.
        #[arg(add = ArgValueCandidates::new(completion::images))]
        image: String,
        #[command(flatten)]
        sandbox: SandboxArguments,
        #[command(flatten)]
        network: NetworkArguments,
        #[command(flatten)]
        limits: LimitArguments,
        #[command(flatten)]
        volumes: VolumeArguments,
        /// For an image of mode driver: put what was on the GPU with UUID OLD on the one with UUID NEW.
        #[arg(long, value_name = "OLD=NEW", value_delimiter = ',')]
        gpu_map: Vec<String>,
        /// In which order GPU buffers are loaded; with `none`, GPU calls wait for all of them.
        #[arg(long)]
        order: Option<OrderArgument>,
        /// Read and check every byte of the image before its program runs.
        #[arg(long)]
        verify: bool,
    },
    /// Learn in which order a program uses its GPU buffers, so that later restores of the image load them so.
    ///
    /// Restores the image in a sandbox of its own, runs the command (on this side, not in the sandbox) that has the
    /// program do what it is for, keeps the order with the image, and ends the sandbox. The command finds the sandbox's
    /// name in REKINDLE_SANDBOX.
    Profile {
        #[arg(add = ArgValueCandidates::new(completion::images))]
        image: String,
        /// The GPU: emulated[:SETTINGS] or nvidia[:INDEX].
        #[arg(long, value_name = "GPU")]
        gpu: Option<String>,
        /// What sends the request, and its arguments; it ends when the request is answered.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "REQUEST")]
        request: Vec<String>,
    },
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
    Migrate {
        #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
        name: String,
        /// The GPU that it is to move to: nvidia:INDEX or emulated:INDEX. With --to that of the other node; its usual one if
        /// nothing is said.
        #[arg(long, value_name = "GPU", required_unless_present_any = ["to", "take_back"])]
        gpu: Option<String>,
        /// The node that it is to move to, by the name that `rekindle node add` has given it.
        #[arg(long, value_name = "NODE", conflicts_with = "take_back", add = ArgValueCandidates::new(completion::nodes))]
        to: Option<String>,
        /// Have its memory go through the host's, and be copied so often at most while it runs; 0 has it stand still for all.
        ///
        /// Without this the other GPU copies it by itself, or where it cannot, it is 4. To another node it is sent at least
        /// once while it runs.
        #[arg(long, value_name = "N")]
        rounds: Option<u32>,
        /// With --to: ports of the other machine's that are to lead to it, in place of those that it has here.
        #[arg(short, long, value_name = "[ADDRESS:]PORT:TO", requires = "to")]
        publish: Vec<Port>,
        /// With --to: have its ports here lead there for so long, such as 30m; `rekindle rm` ends that.
        #[arg(long, value_name = "TIME", value_parser = service::duration, requires = "to")]
        forward: Option<u64>,
        /// Have a program go on here that waits for another node to say whether it has it.
        ///
        /// That node may run it: be sure that it does not, and never will.
        #[arg(long, conflicts_with_all = ["gpu", "rounds"])]
        take_back: bool,
    },
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
        /// Name of the service. Its instances are the sandboxes NAME-1, NAME-2 and so on.
        #[arg(long)]
        name: String,
        #[command(flatten)]
        service: ServiceArguments,
    },
    /// List services: their instances by stage, and their requests.
    Services,
    /// Print where the daemon's page is, and open it where there is a desktop.
    ///
    /// It shows services with their instances, who has how much GPU memory, sandboxes and images.
    Page {
        /// Only print it.
        #[arg(long)]
        no_open: bool,
    },
    /// Change how many instances a service has.
    #[command(group = ArgGroup::new("what").required(true).multiple(true).args(["min", "max"]))]
    Scale {
        #[arg(value_name = "SERVICE", add = ArgValueCandidates::new(completion::services))]
        name: String,
        #[command(flatten)]
        scale: ScaleArguments,
    },
    /// Have a service refuse requests, answer those that it has, and end its instances. `serve` has it go on.
    Drain {
        #[arg(value_name = "SERVICE", add = ArgValueCandidates::new(completion::services))]
        name: String,
    },
    /// Remove a service, once the requests that it has are answered and its instances have ended.
    Unserve {
        #[arg(value_name = "SERVICE", add = ArgValueCandidates::new(completion::services))]
        name: String,
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

/// A file of functions.
#[derive(Debug, Args)]
pub struct AppArguments {
    /// The Python file that has the app, or a manifest that ends in .toml.
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub file: PathBuf,
    /// The interpreter that functions run in. It must have the package `rekindle`.
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    pub python: String,
    /// The tenant whose services they are, in place of the one that the file names.
    #[arg(long, value_name = "TENANT", add = ArgValueCandidates::new(completion::tenants))]
    pub tenant: Option<String>,
}

/// A model, and the app that is made of it.
#[derive(Debug, Args)]
pub struct ConvertArguments {
    /// A .pt2 or .onnx file, or a directory with config.json and safetensors.
    #[arg(value_name = "MODEL", value_hint = clap::ValueHint::AnyPath)]
    pub model: PathBuf,
    /// The new directory of the app.
    #[arg(long, short, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub output: PathBuf,
    /// The name of the app and of the model; that of the file if none is given.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where the weights will lie: s3://BUCKET/KEY, http(s)://HOST/PATH or file:///PATH. In DIR if none is given.
    #[arg(long, value_name = "URL")]
    pub data_url: Option<String>,
    /// The interpreter that converts it. It must have the package `rekindle`, and torch.
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    pub python: String,
}

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Take an image of a program that is ready for any app: `run --from` starts apps from it.
    ///
    /// Without COMMAND the program is Python with torch and numpy imported, if they are there, and GPU operators run once.
    Framework {
        /// Name of the new image.
        image: String,
        /// The GPU: emulated[:SETTINGS] or nvidia[:INDEX].
        #[arg(long, value_name = "GPU")]
        gpu: Option<String>,
        /// The interpreter; python3 if none is given.
        #[arg(long, value_name = "PYTHON", conflicts_with = "command")]
        python: Option<String>,
        /// A module to import, in place of torch and numpy; may be given again.
        #[arg(long = "import", value_name = "MODULE", conflicts_with = "command")]
        imports: Vec<String>,
        /// A script to run after the imports, which uses what apps will use.
        #[arg(long, value_name = "FILE", conflicts_with = "command")]
        warm: Option<PathBuf>,
        /// How long the program may take to be ready, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds)]
        limit: f64,
        /// A program of your own that says when it is ready and waits for its app.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 86_400.0 => Ok(value),
        _ => Err("expected a number of seconds, more than 0 and at most 86400".to_string()),
    }
}

/// A time, or how long ago it was, in microseconds since 1970.
fn since(text: &str) -> Result<u64, String> {
    let time = match (text.parse::<Timestamp>(), text.parse::<SignedDuration>()) {
        (Ok(time), _) => Ok(time),
        (_, Ok(ago)) => Timestamp::now().checked_sub(ago.abs()).map_err(|error| error.to_string()),
        _ => Err("expected a time with its zone such as 2030-01-31T12:00:00Z, or how long ago, such as 10m or 1h30m".to_string()),
    };
    time.map(|time| u64::try_from(time.as_microsecond()).unwrap_or(0))
}

fn grace(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=86_400.0).contains(&value) => Ok(value),
        _ => Err("expected a number of seconds, at most 86400".to_string()),
    }
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
        let Command::Run { sandbox, command, .. } = parsed.command else { panic!("not run") };
        assert!(sandbox.detach);
        assert_eq!(command, ["python3", "-d", "--json"]);
    }

    #[test]
    fn a_time_is_one_or_how_long_ago_it_was() {
        assert_eq!(since("1970-01-01T00:00:01.5Z"), Ok(1_500_000));
        assert_eq!(since("1970-01-01T01:00:00+01:00"), Ok(0));
        let (ago, now) = (since("1h30m").unwrap(), since("0s").unwrap());
        assert!((5_400_000_000..5_520_000_000).contains(&(now - ago)), "{now} {ago}");
        for wrong in ["", "yesterday", "2030-01-31", "10", "m", "-"] {
            assert!(since(wrong).unwrap_err().contains("10m"), "{wrong}");
        }
    }

    #[test]
    fn a_framework_image_is_of_python_or_of_a_command() {
        let parse = |rest: &[&str]| {
            Arguments::try_parse_from(["rekindle", "image", "framework", "f"].iter().chain(rest)).is_ok()
        };
        assert!(parse(&[]) && parse(&["--import", "a", "--import", "b", "--warm", "w.py", "--python", "p"]));
        assert!(parse(&["--gpu", "emulated", "--", "./program", "--import"]));
        assert!(!parse(&["--import", "a", "--", "./program"]));
        let run = |mode: &[&str]| {
            let words = ["rekindle", "run", "--from", "f"].iter().chain(mode).chain(&["--", "a.py"]);
            Arguments::try_parse_from(words).is_ok()
        };
        assert!(run(&[]) && !run(&["--mode", "driver"]));
    }

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

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Say this node's public key, which other nodes are told, and where it is heard.
    Id,
    /// Have another node be known. It has to know this one too.
    Add {
        /// What it is called here.
        name: String,
        /// Where it is heard: HOST:PORT, the port being that of its daemon's --node-port.
        address: String,
        /// What `rekindle node id` prints there.
        key: String,
    },
    /// List the nodes that are known.
    Ls,
    /// Know a node no more.
    Rm {
        #[arg(add = ArgValueCandidates::new(completion::nodes))]
        name: String,
    },
}
