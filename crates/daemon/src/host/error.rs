//! What can go wrong with this machine: places on disk, locks, GPUs, mounts and limits.

use std::io;
use std::path::PathBuf;

use rekindle_protocol::mounts::Volume;

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("{} is too long for what is made there (at most {most} bytes); choose a shorter path", path.display())]
    PathTooLong { path: PathBuf, most: usize },

    #[error("{} belongs to user {owner}; choose a directory of your own", path.display())]
    ForeignDirectory { path: PathBuf, owner: u32 },

    #[error("another daemon ({holder}) uses {}; talk to that one, or give this one another --state", state.display())]
    AlreadyRunning { state: PathBuf, holder: String },

    #[error("{} belongs to another daemon that runs; it is left alone", path.display())]
    Foreign { path: PathBuf },

    #[error(
        "no GPU is named {given:?}; use `emulated`, `nvidia`, `nvidia:INDEX` or, for several, `nvidia:0,1`"
    )]
    BadGpu { given: String },

    #[error("this machine has no NVIDIA GPU for {gpu:?}; use `emulated`, or see `rekindle doctor`")]
    NoGpu { gpu: String },

    #[error("{gpu:?} is no GPU of the driver's; use `--mode sandbox`, or leave --gpu out")]
    EmulatedDriver { gpu: String },

    #[error("the volume {volume} cannot be mounted: {why}")]
    NoVolume { volume: Volume, why: String },

    #[error("{} cannot have a private layer: {why}", directory.display())]
    NoOverlay { directory: PathBuf, why: String },

    #[error(
        "memory and processors cannot be limited here: {source}; that needs control groups of the kernel's that the daemon may make (/sys/fs/cgroup), or leave `--memory` and `--cpus` out"
    )]
    NoLimits { source: io::Error },

    #[error("the client library libcuda.so.1 was not found beside {} or in ../lib/rekindle; build or install it", executable.display())]
    NoClientLibrary { executable: PathBuf },
}
