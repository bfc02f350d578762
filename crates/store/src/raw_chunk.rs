//! A chunk that is kept as it is, opened. What is read of it is not checked: whoever reads compares the hash.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::hash::ContentHash;

/// What direct reads are rounded up to: no disk has larger sectors.
const SECTOR: u64 = 4096;
/// How much of a file is looked at to tell whether it lies in memory.
const GLIMPSE: u64 = 64 << 10;
/// Not in the C library yet.
const SYS_CACHESTAT: libc::c_long = 451;

pub struct RawChunk {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) bytes: u64,
    pub(crate) hash: ContentHash,
}

impl RawChunk {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What its bytes hash to.
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Fills the start of `into`, from the byte of that place on, through the page cache.
    pub fn read_from(&self, start: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, start).map_err(|error| self.unreadable(error))
    }

    /// The error of a read that failed so.
    pub fn unreadable(&self, error: io::Error) -> Error {
        Error::io("read", &self.path, 0, error)
    }

    /// How much a direct read asks for.
    pub fn direct_bytes(&self) -> u64 {
        self.bytes.next_multiple_of(SECTOR)
    }

    /// Whether the page cache has it, as a look at its middle tells: the kernel gives up whole files before parts of
    /// them. An error where the kernel does not tell.
    pub fn is_in_memory(&self) -> io::Result<bool> {
        let start = (self.bytes / 2).saturating_sub(GLIMPSE / 2) / SECTOR * SECTOR;
        let range = [start, GLIMPSE.min(self.bytes - start)];
        // Pages in memory, changed, being written, evicted, evicted lately.
        let mut found = [0u64; 5];
        // SAFETY: an open file, and two structures of so many words, borrowed for the call.
        let code = unsafe {
            libc::syscall(SYS_CACHESTAT, self.file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0)
        };
        match code {
            0 => Ok(found[0] > 0),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has reads of its file go past the page cache, or through it. An error where the file system cannot do that.
    pub fn set_direct(&self, direct: bool) -> io::Result<()> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        // SAFETY: sets a flag of an open file that nobody else has.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETFL, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
