//! What can go wrong with GPU workers.

use std::path::PathBuf;

use rekindle_protocol::frame::FrameError;

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("the GPU worker did not start: {reason}; see {}", log.display())]
    Start { reason: String, log: PathBuf },

    #[error("the GPU worker ended while it was to {action}: {how}; see {}", log.display())]
    Ended { action: &'static str, how: String, log: PathBuf },

    #[error("the GPU worker could not {action}: {reason}")]
    Failed { action: &'static str, reason: String },

    #[error(
        "the program changed GPU memory that none of its kernels was known to write to while that was written to the image; try \
         again, which writes it while the program stands still"
    )]
    Overwritten,

    #[error("the connection to the GPU worker failed while it was to {action}: {source}")]
    Connection { action: &'static str, source: FrameError },
}
