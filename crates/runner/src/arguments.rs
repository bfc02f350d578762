//! What a runner is told.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::data::Declared;

/// Serve functions of libraries: each instance is a thread with a GPU stream of its own.
///
/// `rekindle deploy function.toml` starts it in a sandbox, and takes its image once all functions are set up.
#[derive(Debug, Parser)]
#[command(name = "rekindle-runner", version)]
pub struct Arguments {
    /// Shared libraries with functions, made with `rekindle.h` or the crate `rekindle-function`.
    #[arg(value_name = "LIBRARY")]
    pub libraries: Vec<PathBuf>,
    /// What the runner is called in messages.
    #[arg(long, default_value = "runner")]
    pub name: String,
    /// Where requests come.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8000")]
    pub listen: String,
    /// How many instances there are at once, of all functions together.
    #[arg(long, value_name = "COUNT", default_value = "16", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub instances: u32,
    /// How long an instance without a call is kept, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub idle: Duration,
    /// How long a call may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub timeout: Duration,
    /// Data that functions have by its name.
    #[arg(long, value_name = "NAME=DTYPE:SHAPE:URL")]
    pub data: Vec<Declared>,
    /// Has a document once all functions are set up, or could not be.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// How often callers make a call again that failed.
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub max_retries: u32,
    /// After how many seconds the first time.
    #[arg(long, value_name = "SECONDS", default_value = "0.1")]
    pub initial_delay: f64,
    /// After how many times as long each further time.
    #[arg(long, value_name = "FACTOR", default_value = "2")]
    pub backoff: f64,
    /// After how many seconds at most.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    pub max_delay: f64,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let found = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    // A time that ends beyond the clock is none.
    found
        .filter(|time| *time < Duration::from_secs(1 << 31))
        .ok_or_else(|| format!("{text:?} is no time; give seconds, such as 0.5"))
}
