//! The `rekindle` command: asks the daemon, shows its answers.
//!
//! Exit codes: 0 when it worked, 1 when it did not, 2 for a command line that makes no sense; `run` and `restore` in the
//! foreground end with the program's own, and as a shell does if there is no such program (127) or it cannot be executed
//! (126); a checkpoint that is cancelled ends with 130.

mod archive;
mod arguments;
mod cancel;
mod commands;
mod completion;
mod connection;
mod copy;
mod desktop;
mod error;
mod exec;
mod filter;
mod foreground;
mod functions;
mod input;
mod nodes;
mod pages;
mod picture;
mod profile;
mod progress;
mod recovery;
pub mod settings;
mod show;
mod stats;
mod tenant;
mod terminal;
mod trace;
mod user_spec;
mod workflow;

use std::process::ExitCode;

use clap::Parser;
use serde_json::json;

pub use arguments::{Arguments, PathArguments};
pub use error::{Error, Result};

/// Does what the command line says.
pub fn main() -> ExitCode {
    completion::answer();
    let arguments = Arguments::parse();
    let as_json = arguments.json;
    match commands::perform(arguments) {
        Ok(code) => code,
        Err(error) => {
            let sentence = error.to_string().lines().map(str::trim).collect::<Vec<_>>().join("; ");
            eprintln!("rekindle: {sentence}");
            // A command that failed with its document printed has said more there.
            if as_json && !matches!(error, Error::Unsound { .. }) {
                println!("{}", json!({ "error": sentence }));
            }
            ExitCode::from(error.exit_code())
        }
    }
}
