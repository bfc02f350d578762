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

    #[error("{given:?} names GPU {number} twice; name each once")]
    SameGpu { given: String, number: String },

    #[error("this machine has no NVIDIA GPU for {gpu:?}; use `emulated`, or see `rekindle doctor`")]
    NoGpu { gpu: String },

    #[error("{gpu:?} is no GPU of the driver's; use `--mode sandbox`, or leave --gpu out")]
    EmulatedDriver { gpu: String },

    #[error("the volume {volume} cannot be mounted: {source}")]
    NoVolume { volume: Volume, source: Box<MountError> },

    #[error("{} cannot have a private layer: {source}", directory.display())]
    NoOverlay { directory: PathBuf, source: Box<MountError> },

    #[error(
        "memory and processors cannot be limited here: {source}; that needs control groups of the kernel's that the daemon may make (/sys/fs/cgroup), or leave `--memory` and `--cpus` out"
    )]
    NoLimits { source: io::Error },

    #[error("the client library libcuda.so.1 was not found beside {} or in ../lib/rekindle; build or install it", executable.display())]
    NoClientLibrary { executable: PathBuf },
}

/// Why something cannot lie where a program is to see it.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("there is no {}; {way_out}", place.display())]
    Missing { place: PathBuf, way_out: &'static str },

    #[error("{} cannot be used: {source}", place.display())]
    Unusable { place: PathBuf, source: io::Error },

    #[error("{}: {source}", place.display())]
    Unseen { place: PathBuf, source: io::Error },

    #[error(
        "{} is {} and {} is {}; name two of one kind",
        host.display(), kind(*is_directory), inside.display(), kind(!is_directory)
    )]
    Kinds { host: PathBuf, is_directory: bool, inside: PathBuf },

    #[error("another volume is to lie at {}; name each place once", place.display())]
    Twice { place: PathBuf },

    #[error("it is no directory; name the one that is to be written to")]
    NoDirectory,

    #[error(
        "it lies on an overlayfs itself, as in a container, and CRIU cannot take what is mapped through two of them; \
         name a directory on another file system"
    )]
    OnOverlayfs,

    #[error("there is to be one over {} too; one over the outer directory is enough", other.display())]
    Nested { other: PathBuf },

    #[error("{} cannot be read: {source}", table.display())]
    NoTable { table: PathBuf, source: io::Error },

    #[error(
        "{} is mounted in it, of which the program would see nothing; name a directory without such",
        point.display()
    )]
    Hidden { point: PathBuf },

    #[error("{} leads by a link out of the volume {volume}; name the place itself", place.display())]
    Outside { place: PathBuf, volume: Volume },

    #[error("{own} is the sandbox's own; name another place")]
    Own { own: &'static str },
}

fn kind(is_directory: bool) -> &'static str {
    if is_directory { "a directory" } else { "no directory" }
}
