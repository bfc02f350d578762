//! What can go wrong with a sandbox's CPU half, in sentences.

use std::path::{Path, PathBuf};
use std::time::Duration;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no usable CRIU: {tried}; version {required} or newer is needed, run scripts/criu or name its directory in REKINDLE_CRIU_DIR"
    )]
    NoCriu { tried: String, required: String },
    #[error("CRIU cannot work on this machine: {cause}")]
    CriuCheck { cause: String },
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the sandbox could not be set up: {cause}")]
    Setup { cause: String },
    #[error("the program could not be started: {cause}")]
    Start {
        cause: String,
        /// The status by which a shell tells of it, if it has one for that.
        shell_code: Option<u8>,
    },
    #[error("CRIU could not {action} the program: {cause}{log}", log = told_in(log.as_deref()))]
    Criu { action: &'static str, cause: String, log: Option<PathBuf> },
    #[error("the file system of {place} is full: the program's memory did not fit; make room there", place = place.display())]
    DiskFull { place: PathBuf },
    #[error("the program cannot be dumped: {cause}")]
    Refused { cause: String },
    #[error("there is no process {pid} to be checkpointed; `ps -e` lists all")]
    NoProcess { pid: i32 },
    #[error("process {pid} ended while the program stood still for its dump")]
    Died { pid: i32 },
    #[error("{path} holds no dump of a program: it has no inventory.img", path = path.display())]
    NoImages { path: PathBuf },
    #[error(
        "the program listens on {address}, and so does {by}; end that one first, or have one of them listen on another port"
    )]
    PortTaken { address: std::net::SocketAddr, by: String },
    #[error("the {action} was given up: {cause}")]
    Aborted { action: &'static str, cause: String },
    #[error("{what} did not happen within {after:?}")]
    TimedOut { what: String, after: Duration },
    #[error("the sandbox in {run_dir} has ended", run_dir = run_dir.display())]
    Ended { run_dir: PathBuf },
    #[error(
        "the program has no terminal; `rekindle run -t` starts one with a terminal, and `rekindle logs -f` follows this one"
    )]
    NoTerminal,
    #[error("only a program in a sandbox can be held")]
    CannotHold,
    #[error("the sandbox's init answered {found}, expected {expected}; is it of another version?")]
    Protocol { found: String, expected: &'static str },
    #[error("the caller's step failed: {0}")]
    Hook(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Where more is to be read, if anywhere: a CRIU that ends early has written nothing.
fn told_in(log: Option<&Path>) -> String {
    log.map(|log| format!(" (its log: {})", log.display())).unwrap_or_default()
}

impl Error {
    /// Turns an I/O error into one that says what was being done.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
