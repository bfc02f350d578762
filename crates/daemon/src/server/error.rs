//! What can go wrong with what the command line asks.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("another daemon answers on {}; give this one another --socket", socket.display())]
    SocketInUse { socket: PathBuf },

    #[error(
        "the daemon on {} has the {what} {}, and not {}; give that one's --socket, or another one to start a daemon there",
        socket.display(), found.display(), wanted.display()
    )]
    OtherDaemon { socket: PathBuf, what: &'static str, found: PathBuf, wanted: PathBuf },

    #[error(
        "there is no sandbox and no image named {name:?}; `rekindle ps -a` and `rekindle images` list them"
    )]
    UnknownName { name: String },

    #[error(
        "a sandbox and an image are named {name:?}; `rekindle rm --sandbox` removes the sandbox, `rekindle rmi` the image"
    )]
    TwoNamed { name: String },

    #[error("{given:?} is no signal number; use 1 to 64")]
    BadSignal { given: i32 },
}
