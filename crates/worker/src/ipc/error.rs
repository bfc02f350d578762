//! Why what processes share cannot be had, or kept.

use std::io;

use rekindle_cuda::CuResult;
use rekindle_protocol::frame::FrameError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum IpcError {
    #[error("whose {what} is that several processes have: {source}")]
    Unknown { what: &'static str, source: FrameError },
    #[error(
        "the program uses memory of a process that has let go of it, and the GPU has no room for a copy \
         ({0}); free some memory, or have the program close it"
    )]
    NoRoom(#[source] CuResult),
    #[error("events of a process that has ended cannot be kept: {0}")]
    Events(#[source] CuResult),
    #[error("others cannot be given memory: {0}")]
    Service(#[source] io::Error),
    #[error("memory of another process cannot be had: {0}")]
    Fetch(#[source] FrameError),
    #[error("another process of the program came back without memory that it shares")]
    Gone,
    #[error("it was given up while it waited for memory of another process")]
    GivenUp,
}
