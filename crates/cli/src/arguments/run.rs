//! Programs that are started, and commands beside them.

use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use rekindle_protocol::mounts::Overlay;

use super::{
    LimitArguments, ModeArgument, NetworkArguments, SandboxArguments, SettingArguments, TerminalArguments,
    VolumeArguments,
};
use crate::completion;
use crate::exec::variable;
use crate::recovery::RecoveryArguments;

/// A program that is started in a new sandbox.
#[derive(Debug, Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub sandbox: SandboxArguments,
    #[command(flatten)]
    pub network: NetworkArguments,
    #[command(flatten)]
    pub limits: LimitArguments,
    #[command(flatten)]
    pub setting: SettingArguments,
    #[command(flatten)]
    pub volumes: VolumeArguments,
    /// Give the program a private layer over a directory, which takes what it writes there; may be given again.
    ///
    /// The layer is in memory, holds at most SIZE (1G if none is given), is kept in images, and goes with the sandbox.
    /// Each restored program has its own.
    #[arg(long = "overlay", value_name = "DIR[:SIZE]", conflicts_with = "from")]
    pub overlays: Vec<Overlay>,
    /// How its GPU half will be taken: through Rekindle's own libcuda (sandbox), or by the driver's own checkpoint.
    #[arg(long, default_value = "sandbox")]
    pub mode: ModeArgument,
    /// The framework image to start from, whose program becomes this one.
    #[arg(long, value_name = "IMAGE", conflicts_with = "mode", add = ArgValueCandidates::new(completion::images))]
    pub from: Option<String>,
    /// Give the program what a checkpoint cannot take, and what it is therefore not given else.
    ///
    /// While it uses that it cannot be checkpointed. May be given several times.
    #[arg(long, value_name = "NAME", conflicts_with = "from", value_parser = clap::builder::PossibleValuesParser::new(rekindle_sandbox::withheld::names()))]
    pub allow: Vec<String>,
    #[command(flatten)]
    pub recovery: RecoveryArguments,
    #[command(flatten)]
    pub terminal: TerminalArguments,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// A command beside a program.
#[derive(Debug, Args)]
pub struct ExecArguments {
    #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
    pub name: String,
    /// A variable of its environment, beside the program's own; NAME alone takes its value from here.
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    pub environment: Vec<(String, String)>,
    /// Its working directory; the program's if none is given.
    #[arg(short = 'w', long = "workdir", value_name = "DIR")]
    pub directory: Option<String>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
