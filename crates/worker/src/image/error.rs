//! Why the GPU half could not be saved or restored.

use std::sync::Arc;

use rekindle_cuda::CuResult;
use rekindle_protocol::fault::Injected;
use rekindle_protocol::worker::NO_GPU_MEMORY;

use crate::dispatch::DispatchError;
use crate::ipc::IpcError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the GPU could not {action}: {code}")]
    Device { action: String, code: CuResult },
    #[error(
        "the GPU could not {action} ({NO_GPU_MEMORY}): {free} of its {total} MB are free now; another program may have \
         taken some since that was checked; free some or give another --gpu"
    )]
    Taken { action: String, free: u64, total: u64 },
    #[error(transparent)]
    Store(#[from] rekindle_store::Error),
    #[error("the image's GPU state cannot be understood: {0}")]
    State(String),
    #[error(
        "the image was made with {expected} and this worker has {found}; restore it where the same GPU is"
    )]
    Gpu { expected: String, found: String },
    #[error(
        "{path} is not the file that the program's code came from: {expected} was expected, {found} was found"
    )]
    Code { path: String, expected: String, found: String },
    #[error("the image's GPU state cannot be understood: {0}")]
    PendingCode(#[source] Arc<Error>),
    #[error(transparent)]
    Ipc(#[from] IpcError),
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    #[error(transparent)]
    Injected(#[from] Injected),
    #[error("{0}")]
    Refused(String),
    #[error(
        "the program wrote to memory that was being written to the image, which no request of its was known to write to"
    )]
    Overwritten,
    #[error("the daemon went away")]
    Cancelled,
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: String, source: std::io::Error },
}

/// Why contents were not loaded: told to all who wait for them.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LoadingError {
    #[error("image {image:?} could not be loaded: {source}")]
    Failed { image: String, source: Arc<Error> },
    #[error("nothing is being loaded")]
    Nothing,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Turns a driver's code into an error that says what was tried.
pub(super) fn device(action: impl Into<String>) -> impl FnOnce(CuResult) -> Error {
    move |code| Error::Device { action: action.into(), code }
}
