//! What can go wrong in the command line, each as one sentence.

use std::io;
use std::path::PathBuf;

use rekindle_protocol::frame::FrameError;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Daemon(#[from] rekindle_daemon::Error),
    /// What the daemon said.
    #[error("{message}")]
    Refused { message: String, exit_code: Option<u8> },
    #[error("the image {image:?} is damaged: {problems}; checkpoint again or use another one")]
    Unsound { image: String, problems: String },
    #[error(
        "the sandbox {name:?} was neither checkpointed nor restored, so there is no trace of it; checkpoint it first"
    )]
    NoTrace { name: String },
    #[error("the request {command:?} failed ({how}), so that nothing was learned; the image is as it was")]
    Request { command: String, how: String },
    #[error("the daemon could not be started: {0}")]
    NoDaemon(String),
    #[error("the connection to the daemon was lost ({0}); sandboxes go on without it")]
    Lost(#[from] FrameError),
    #[error("the daemon gave an answer that could not be understood ({0}); is it of another version?")]
    Answer(#[from] serde_json::Error),
    #[error(
        "standard input is no terminal, which a program with a terminal is used by; start it with `run -d -t`, and come to it by `rekindle attach` from a terminal"
    )]
    NoTerminal,
    #[error(
        "nobody types for a program in the background that has no terminal; leave out -i or -d, or give it one with -t"
    )]
    NobodyTypes,
    #[error("a copy goes from here to a sandbox or from a sandbox to here; give one end as SANDBOX:PATH")]
    Ends,
    #[error(
        "the interpreter {python:?} cannot be started ({source}); name one by --python that has the package rekindle"
    )]
    Python { python: String, source: io::Error },
    #[error("the settings in {} cannot be used: {reason}", file.display())]
    Settings { file: PathBuf, reason: String },
    #[error("the graph in {} cannot be used: {why}; name a file that has one", file.display())]
    Graph { file: PathBuf, why: String },
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {action}: {source}")]
    System { action: &'static str, source: io::Error },
}

impl Error {
    /// How the command ends that failed so.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Refused { exit_code, .. } => exit_code.unwrap_or(1),
            _ => 1,
        }
    }

    pub fn system(action: &'static str, source: impl Into<io::Error>) -> Error {
        Error::System { action, source: source.into() }
    }
}
