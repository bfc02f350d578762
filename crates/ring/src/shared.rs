//! Ring and board files: their layout, and mapping them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::board::Board;
use crate::queue::{Consumer, Header, Producer};
use crate::staging::Staging;

const PAGE: usize = 4096;
const DATA_BYTES: usize = 512 << 10;

/// Bytes of the reply area.
pub const REPLY_BYTES: usize = 64 << 10;
/// Bytes of the staging area.
pub const STAGING_BYTES: usize = 16 << 20;
/// Bytes of a ring file.
pub const RING_BYTES: usize = PAGE + REPLY_BYTES + DATA_BYTES + STAGING_BYTES;

const _: () = assert!(size_of::<Header>() <= PAGE && size_of::<Board>() <= PAGE);

#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    #[error("cannot {action} the shared file {path}: {source}", path = path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the shared file {path} has {found} bytes where {expected} were expected", path = path.display())]
    Size { path: PathBuf, found: u64, expected: u64 },
}

/// A mapped ring file. The mapping lives as long as the process, or until [`Ring::unmap`].
#[derive(Clone, Copy)]
pub struct Ring {
    base: *mut u8,
}

// SAFETY: the mapping is shared memory; all access to its words is atomic or ordered by them.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Makes a new ring file (0600) and maps it.
    pub fn create(path: &Path) -> Result<Ring, SharedError> {
        Ok(Ring { base: map(path, RING_BYTES, true)? })
    }

    /// Maps a ring file that the other side made.
    pub fn open(path: &Path) -> Result<Ring, SharedError> {
        Ok(Ring { base: map(path, RING_BYTES, false)? })
    }

    /// # Safety
    /// Nothing that was got from it, or from a copy of it, is used any more.
    pub unsafe fn unmap(self) {
        // SAFETY: the mapping is RING_BYTES long, and nobody uses it, as the caller promises.
        unsafe { libc::munmap(self.base.cast(), RING_BYTES) };
    }

    pub fn header(&self) -> &'static Header {
        // SAFETY: the mapping is page-aligned, at least a page long, there while it is used (`unmap`), and zero bytes are a
        // valid header.
        unsafe { &*self.base.cast::<Header>() }
    }

    /// # Safety
    /// At most one producer of a ring may be in use at a time.
    pub unsafe fn producer(&self) -> Producer<'static> {
        // SAFETY: the data area lies inside the mapping; uniqueness is the caller's promise.
        unsafe { Producer::new(self.header(), self.base.add(PAGE + REPLY_BYTES), DATA_BYTES) }
    }

    /// # Safety
    /// At most one consumer of a ring may be in use at a time.
    pub unsafe fn consumer(&self) -> Consumer<'static> {
        // SAFETY: as above.
        unsafe { Consumer::new(self.header(), self.base.add(PAGE + REPLY_BYTES), DATA_BYTES) }
    }

    /// Where the worker writes an answer; [`REPLY_BYTES`] long.
    pub fn reply_area(&self) -> *mut u8 {
        // SAFETY: the area lies inside the mapping.
        unsafe { self.base.add(PAGE) }
    }

    /// Where staged bytes lie; [`STAGING_BYTES`] long, page-aligned.
    pub fn staging_area(&self) -> *mut u8 {
        // SAFETY: the area lies inside the mapping.
        unsafe { self.base.add(PAGE + REPLY_BYTES + DATA_BYTES) }
    }

    /// # Safety
    /// At most one allocator of a ring's staging area may be in use at a time.
    pub unsafe fn staging(&self) -> Staging {
        Staging::new(*self)
    }
}

/// A mapped board file.
pub struct BoardMapping;

impl BoardMapping {
    pub fn create(path: &Path) -> Result<&'static Board, SharedError> {
        // SAFETY: page-aligned, at least a page, never unmapped; zero bytes are a valid new board.
        Ok(unsafe { &*map(path, PAGE, true)?.cast::<Board>() })
    }

    pub fn open(path: &Path) -> Result<&'static Board, SharedError> {
        // SAFETY: as above.
        Ok(unsafe { &*map(path, PAGE, false)?.cast::<Board>() })
    }

    /// # Safety
    /// The board came from here and is not used any more.
    pub unsafe fn unmap(board: &'static Board) {
        // SAFETY: the mapping is a page long, and nobody uses it, as the caller promises.
        unsafe { libc::munmap(std::ptr::from_ref(board).cast_mut().cast(), PAGE) };
    }
}

fn map(path: &Path, bytes: usize, create: bool) -> Result<*mut u8, SharedError> {
    let fail = |action| move |source| SharedError::Io { action, path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(create).mode(0o600).custom_flags(libc::O_CLOEXEC);
    let file: File = options.open(path).map_err(fail("open"))?;
    if create {
        file.set_len(bytes as u64).map_err(fail("size"))?;
    }
    let found = file.metadata().map_err(fail("read the size of"))?.len();
    if found != bytes as u64 {
        return Err(SharedError::Size { path: path.to_owned(), found, expected: bytes as u64 });
    }
    // SAFETY: a new shared mapping of a file that is `bytes` long; nothing else lives there.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(fail("map")(io::Error::last_os_error()));
    }
    Ok(base.cast())
}
