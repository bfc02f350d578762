//! Why the dispatch thread does not do what it is asked for.

use std::time::Duration;

use rekindle_cuda::CuResult;
use rekindle_ring::Corrupt;

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum DispatchError {
    /// It has ended: why.
    #[error("{0}")]
    Over(String),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error(
        "the context that it shared has failed, and it is about to go on in another one; try again in a moment"
    )]
    Leaving,
    #[error("the program's buffers are being loaded; try again")]
    LoadsAgain,
    #[error("the program's buffers are becoming its own; try again")]
    EndsSharing,
    #[error("shared buffers could not be copied: {0}")]
    Sharing(#[source] CuResult),
    #[error("the program is capturing a graph; try again when it has ended the capture")]
    Capturing,
    #[error("the GPU context of device {device} has failed with {code}; its state cannot be saved")]
    Context { device: usize, code: CuResult },
    #[error(
        "the program holds data that could not be loaded, and has to free it or load it again: {sentence}"
    )]
    Data { sentence: String },
    #[error(
        "data that the program declared was still being loaded after {:.1} s; wait for it, or give more time",
        limit.as_secs_f64()
    )]
    Loading { limit: Duration },
    #[error(
        "the GPU was still running the program's work after {:.1} s; wait for it, or give more time",
        limit.as_secs_f64()
    )]
    Working { limit: Duration },
    #[error(
        "the program holds an array that another function has handed on, and the GPU has no room for a copy of \
         it ({0}); free some memory, or have the program let go of it"
    )]
    Array(#[source] CuResult),
}
