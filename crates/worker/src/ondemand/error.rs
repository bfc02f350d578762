//! Why another worker, or this one started again, cannot go on with a program.

use std::io;

use rekindle_cuda::CuResult;
use rekindle_protocol::fault::Injected;
use rekindle_protocol::mending::MendObstacle;
use rekindle_ring::SharedError;

use crate::dispatch::DispatchError;
use crate::gpu::OpenError;
use crate::image::{self, LoadingError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum OnDemandError {
    #[error("the journal cannot be read: {0}")]
    Journal(#[source] io::Error),
    #[error(transparent)]
    JournalFile(io::Error),
    #[error("all was loaded when the worker ended, and what it had since is lost")]
    Settled,
    #[error("{0:?} is no file name")]
    RingName(String),
    #[error(transparent)]
    Ring(#[from] SharedError),
    #[error("{operation}, which had worked before, gave {code}")]
    Otherwise { operation: &'static str, code: CuResult },
    #[error("nothing was held that is named {0}")]
    NotHeld(&'static str),
    #[error("what a lost worker has kept cannot be read: {0}")]
    Kept(#[source] io::Error),
    #[error(transparent)]
    About(#[from] serde_json::Error),
    #[error("{}", .0.why())]
    Obstacle(MendObstacle),
    #[error("the copy of its memory is not there")]
    NoCopy,
    #[error("its copy of memory cannot be used: {0}")]
    Copy(#[source] CuResult),
    #[error("memory could not be made what it was: {0}")]
    Memory(#[source] CuResult),
    #[error("its requests could not be done once more: {0}")]
    Requests(#[source] CuResult),
    #[error("{found}; run it with --mend=loose if it may go on all the same")]
    Differs { found: String },
    #[error("{0:?} names no GPU")]
    NoGpu(String),
    #[error("nothing tells whether buffers are loaded")]
    NobodyTells,
    #[error("nothing was loaded")]
    NothingLoaded,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Image(#[from] image::Error),
    #[error(transparent)]
    Loading(#[from] LoadingError),
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    #[error(transparent)]
    Injected(#[from] Injected),
}
