//! What programs print, and how they are ended.

use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::time::{grace, since};
use crate::completion;

/// What of a log is shown.
#[derive(Debug, Args)]
pub struct LogArguments {
    #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::known))]
    pub name: String,
    /// Go on until the program has ended.
    #[arg(short, long)]
    pub follow: bool,
    /// Only what was printed since then: a time such as 2030-01-31T12:00:00Z, or how long ago, such as 10m.
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<u64>,
    /// Only the last lines, so many of them.
    #[arg(short = 'n', long, value_name = "LINES")]
    pub tail: Option<u64>,
    /// Show before each line when it was printed.
    #[arg(short, long)]
    pub timestamps: bool,
}

/// Programs that are ended.
#[derive(Debug, Args)]
pub struct StopArguments {
    #[arg(required = true, value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
    pub names: Vec<String>,
    /// How long each program has between SIGTERM and SIGKILL, in seconds.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10.0, value_parser = grace)]
    pub timeout: f64,
}
