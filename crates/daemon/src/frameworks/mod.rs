//! Framework images: of a program that has made itself ready for any app, taken while it waits for one.
//!
//! ```text
//! image framework   run ── imports, warms up ── writes `ready`, opens `app` ─── checkpoint, stop
//! run --from        restore ─────────────────── (still opening `app`) ◀── the app ── becomes it
//! ```
//!
//! `app` is a pipe with a name in the sandbox's run directory. A program that opens it to read waits in the kernel until
//! somebody writes, and holds nothing that a checkpoint would have to take; after a restore it waits at the pipe of the
//! new sandbox. What it reads is one line of JSON: `argv`, `directory` and `environment`. Any program can do that; for
//! Python there is one ([`python`]).

mod app_socket;
mod error;
pub mod python;

use std::path::Path;

pub use app_socket::{App, DIRECTORY, hand_over, is_ready, open};
pub use error::FrameworkError;

use crate::error::Result;

/// Makes all that a program finds that is to get ready in this run directory.
pub fn furnish(run_directory: &Path) -> Result<()> {
    open(run_directory)?;
    python::place(run_directory)
}
