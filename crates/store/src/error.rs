//! What can go wrong with a store, each as one sentence that says what was found, what was
//! expected and what to do.

use std::io;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    #[error(
        "disk full: writing {} needs {needed} bytes and its file system has {free} free; free some space (`rekindle rmi`) and try again",
        path.display()
    )]
    DiskFull { path: PathBuf, needed: u64, free: u64 },

    #[error(
        "{} is {found} and {expected} was expected; put that back, or remove this and what it belongs to (`rekindle rmi` removes an image)",
        path.display()
    )]
    Strange { path: PathBuf, found: &'static str, expected: &'static str },

    #[error(
        "{} has {bytes} bytes and at most {most} were expected; remove it and what it belongs to (`rekindle rmi` removes an image)",
        path.display()
    )]
    TooLong { path: PathBuf, bytes: u64, most: u64 },

    #[error("an image named {name:?} already exists; choose another name or remove it first")]
    NameInUse { name: String },

    #[error("there is no image named {name:?} in {}", store.display())]
    NoImage { name: String, store: PathBuf },

    #[error("the image {name:?} is being read or run from; end that first")]
    ImageInUse { name: String },

    #[error("the image {image:?} has no GPU half of process {process}; checkpoint again")]
    NoHalf { image: String, process: u32 },

    #[error("{} is not an image: it has no manifest.json", path.display())]
    NotAnImage { path: PathBuf },

    #[error("an image cannot be named {shown:?}: {reason}")]
    BadName { shown: String, reason: &'static str },

    #[error("{} is no image store that this version can use: {reason}", path.display())]
    BadStore { path: PathBuf, reason: String },

    #[error(
        "{} has image format {found}, this version reads up to {supported}; use a newer Rekindle",
        path.display()
    )]
    NewerFormat { path: PathBuf, found: u64, supported: u64 },

    #[error("the manifest {} is damaged: {reason}; the image cannot be used", path.display())]
    BadManifest { path: PathBuf, reason: String },

    #[error("chunk {} is missing; the image cannot be used, checkpoint again", path.display())]
    ChunkMissing { path: PathBuf },

    #[error("{} is damaged: {reason}; `rekindle verify` tells which images it spoils", path.display())]
    Damaged { path: PathBuf, reason: String },

    #[error(
        "{} is damaged: {reason}; restores go without it and learn it anew, and it may be removed",
        path.display()
    )]
    BadAdvice { path: PathBuf, reason: String },

    #[error("{} is not in its image's manifest, and would be read with it; remove it", path.display())]
    Stray { path: PathBuf },

    #[error(
        "the archive cannot be imported: {reason}; export the image again, and see that all of the file is copied"
    )]
    BadArchive { reason: String },

    #[error("an image that was sent here is not taken in: {reason}")]
    BadTransfer { reason: String },

    #[error("the image could not be sent: {source}")]
    Unsent { source: io::Error },

    #[error("the archive could not be written: {source}; make room, or write it elsewhere")]
    Unwritten { source: io::Error },

    #[error("part {part:?} has {bytes} bytes, but {length} bytes at offset {offset} were asked for")]
    OutOfRange { part: String, bytes: u64, offset: u64, length: u64 },

    #[error("bytes {offset}..{end} of part {part:?} were written twice; write each byte once")]
    WrittenTwice { part: String, offset: u64, end: u64 },

    #[error("the image already has a {kind} part named {part:?}; give each part of a kind its own name")]
    PartExists { kind: String, part: String },

    #[error("part {part:?} cannot be added to the image: {reason}")]
    BadPart { part: String, reason: String },

    #[error(
        "the image {image:?} cannot be read ({source}), so what it refers to is unknown and nothing was collected; remove it first"
    )]
    Uncollectable { image: String, source: Box<Error> },
}

impl Error {
    /// An I/O error with what was being done, disk-full told apart from the rest.
    pub(crate) fn io(action: &'static str, path: &Path, needed: u64, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::ENOSPC) | Some(libc::EDQUOT) => {
                Error::DiskFull { path: path.to_path_buf(), needed, free: free_bytes(path) }
            }
            _ => Error::Io { action, path: path.to_path_buf(), source },
        }
    }

    /// Whether the cause is a full disk.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Error::DiskFull { .. })
    }
}

/// Free bytes where `path` lies or would lie; 0 if even that cannot be told.
pub(crate) fn free_bytes(path: &Path) -> u64 {
    path.ancestors()
        .find_map(|place| nix::sys::statvfs::statvfs(place).ok())
        .map_or(0, |stat| stat.blocks_available() * stat.fragment_size())
}
