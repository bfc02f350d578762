//! What can go wrong with the driver's checkpoint, in sentences.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rekindle_protocol::fault::Injected;
use rekindle_protocol::frame::FrameError;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the driver's library cannot be used: {0}")]
    Library(String),
    #[error("the driver could not {step} process {pid}: {reason}")]
    Step { step: &'static str, pid: i32, reason: String },
    #[error("process {pid} ended while the driver was to {step} it")]
    Ended { step: &'static str, pid: i32 },
    #[error(
        "the GPU's work of process {pid} did not end within {} s, so that it could not be locked; give it longer with --gpu-wait",
        limit.as_secs_f64()
    )]
    LockTimeout { pid: i32, limit: Duration },
    #[error("the driver did not {step} process {pid} within {} s", limit.as_secs_f64())]
    Hung { step: &'static str, pid: i32, limit: Duration },
    #[error(
        "process {pid} is {found} already, expected running; `cuda-checkpoint --toggle --pid {pid}` or its owner brings it back"
    )]
    NotRunning { pid: i32, found: &'static str },
    #[error(
        "process {pid} has {device} open, and the driver knows no CUDA program in it, so that it cannot let go of that; end what uses NVML alone, or close it"
    )]
    DeviceOnly { pid: i32, device: String },
    #[error(
        "the GPU holds {} MB for the program, which the driver would put into the host's memory, and {} MB are available; free some",
        needed >> 20, available >> 20
    )]
    HostMemory { needed: u64, available: u64 },
    #[error(
        "processes {first} and {second} share GPU memory through NCCL, and driver {driver_version} could not bring them back; start the program with NCCL_P2P_DISABLE=1, or use driver 610 or newer"
    )]
    Shared { first: i32, second: i32, driver_version: String },
    #[error(
        "process {pid} has gigabytes on several GPUs, and driver {driver_version} loses one that has peer access between them and an allocation of 512 MB or more; start it with smaller ones (PyTorch: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), or, if it has no peer access or no such allocation, the daemon with REKINDLE_TUNING=driver.peers=allow"
    )]
    Peers { pid: i32, driver_version: String },
    #[error("{0}; no image was taken, and the program goes on")]
    Undone(Box<Error>),
    #[error("these processes could not be brought back to running: {0}")]
    Stuck(String),
    #[error("the driver helper ended while it was to {action}; its log: {}", log.display())]
    HelperEnded { action: &'static str, log: PathBuf },
    #[error("the driver helper could not {action}: {reason}")]
    Helper { action: &'static str, reason: String },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{0}")]
    GpuMap(String),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Injected(#[from] Injected),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { action, path, source }
    }
}
