//! Chunks of an image that lies in memory of the host, made known to a device before they are asked for.
//!
//! ```text
//!   files ──mapped side by side, read-only──▶ one range of addresses ──registered, some at a time──▶ copies by the device
//! ```
//!
//! Registering takes half a second for a few gigabytes, so a thread does it for as long as the worker waits. A load takes
//! what is known by then, and copies the rest through its blocks. Nothing is copied by registering: the memory is the
//! files' own, which stays, pinned, until this lets go of it, whatever becomes of the files.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rekindle_device::Device;
use rekindle_store::{ContentHash, Encoding, Image, PartKind, bounded};

use super::error::{Error, Result, device};
use crate::dispatch::Dispatcher;
use crate::host_memory::Pinned;

/// So much is registered at once: a load waits for no more.
const AT_ONCE: u64 = 64 << 20;
/// Each file is a mapping of its own, of which the kernel lets a process have 65530.
const MOST_FILES: usize = 32 << 10;
/// Of files that are no whole pages, a mapping would show more than they have.
const PAGE: u64 = 4096;

/// A chunk's file.
struct Stored {
    hash: ContentHash,
    path: PathBuf,
    bytes: u64,
}

/// Begins it, for a worker that has nobody to serve yet.
pub(crate) fn register(dispatcher: &mut Dispatcher, image: &Path) -> Result<()> {
    if dispatcher.client.board.is_some() {
        return Err(Error::Refused("this worker has a program; register into a new one".to_string()));
    }
    let any = dispatcher.client.any_device().map_err(device("be used"))?;
    dispatcher.registering = Some(Registering::begin(&Image::open(image)?, any));
    Ok(())
}

/// The thread that registers.
pub(crate) struct Registering {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Resident>>,
}

impl Registering {
    /// The image is not held meanwhile: of one that is removed no more becomes known.
    pub(super) fn begin(image: &Image, device: Arc<dyn Device>) -> Registering {
        let files = files_of(image);
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let register = move || {
            let mut resident = Resident::reserve(device, files.iter().map(|file| file.bytes).sum())?;
            for some in portions(&files) {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(error) = resident.add(some) {
                    log::info!("the processor copies what sleeps beyond {} bytes: {error}", resident.filled);
                    break;
                }
            }
            log::info!("the GPU knows {} bytes of what sleeps", resident.filled);
            Ok(resident)
        };
        Registering { stop, thread: std::thread::spawn(register) }
    }

    /// What is known by now.
    pub(super) fn end(self) -> Option<Resident> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .ok()?
            .inspect_err(|error| log::info!("the processor copies what sleeps: {error}"))
            .ok()
    }
}

/// The files of all buffers' chunks that are kept as they are, each once.
fn files_of(image: &Image) -> Vec<Stored> {
    let mut seen = HashSet::new();
    let parts = image.parts(PartKind::GpuBuffer).filter(|part| part.file.is_none());
    parts
        .flat_map(|part| &part.chunks)
        .filter(|chunk| chunk.encoding == Encoding::Raw && chunk.bytes.is_multiple_of(PAGE))
        .filter(|chunk| seen.insert(chunk.hash))
        .filter_map(|chunk| {
            Some(Stored { hash: chunk.hash, path: image.chunk_path(chunk)?, bytes: chunk.bytes })
        })
        .take(MOST_FILES)
        .collect()
}

/// Cut so that each has [`AT_ONCE`] bytes, or is one larger file.
fn portions(files: &[Stored]) -> impl Iterator<Item = &[Stored]> {
    let mut bytes = 0;
    files.chunk_by(move |file, next| {
        bytes += file.bytes;
        let goes_on = bytes + next.bytes <= AT_ONCE;
        if !goes_on {
            bytes = 0;
        }
        goes_on
    })
}

/// Memory of files that a device knows.
pub(super) struct Resident {
    device: Arc<dyn Device>,
    base: *mut u8,
    bytes: u64,
    /// Bytes from the base on that files are mapped to.
    filled: u64,
    registered: Vec<Range<u64>>,
    /// Where each chunk lies.
    places: HashMap<ContentHash, u64>,
}

// SAFETY: the mappings are only read, through raw pointers, from whatever thread, and belong to this value alone.
unsafe impl Send for Resident {}
// SAFETY: as above.
unsafe impl Sync for Resident {}

impl Resident {
    /// Takes addresses for so many bytes.
    fn reserve(device: Arc<dyn Device>, bytes: u64) -> io::Result<Resident> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let length = bytes.max(PAGE);
        // SAFETY: a new mapping that nobody can access, at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), length as usize, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let (registered, places) = (Vec::new(), HashMap::new());
        Ok(Resident { device, base: base.cast(), bytes: length, filled: 0, registered, places })
    }

    /// Maps the files behind those before, and has the device know them.
    fn add(&mut self, files: &[Stored]) -> io::Result<()> {
        let start = self.base as u64 + self.filled;
        let mut places = Vec::with_capacity(files.len());
        let mut end = start;
        for stored in files {
            let file = bounded::open(&stored.path).map_err(io::Error::other)?;
            let found = file.metadata()?.len();
            if found != stored.bytes {
                let text = format!("{} has {found} bytes, and had {}", stored.path.display(), stored.bytes);
                return Err(io::Error::other(text));
            }
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: whole pages within the reserved range, which is this value's own; nothing refers to them yet.
            let mapped = unsafe {
                libc::mmap(end as *mut _, found as usize, libc::PROT_READ, flags, file.as_raw_fd(), 0)
            };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            places.push((stored.hash, end));
            end += found;
        }
        let known = self.device.bind().and_then(|()| self.device.host_register_read_only(start, end - start));
        known.map_err(|code| io::Error::other(format!("it cannot be registered: {code}")))?;
        self.registered.push(start..end);
        self.places.extend(places);
        self.filled = end - self.base as u64;
        Ok(())
    }

    /// Where this chunk lies, which the device can copy from.
    pub(super) fn find(&self, hash: &ContentHash) -> Option<u64> {
        self.places.get(hash).copied()
    }
}

impl Pinned for Resident {
    fn unpin_some(&mut self) -> bool {
        let Some(range) = self.registered.pop() else { return false };
        if let Err(code) = self.device.bind().and_then(|()| self.device.host_unregister(range.start)) {
            log::warn!("memory of what slept stays pinned in this worker: {code}");
        }
        true
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        while self.unpin_some() {}
        // SAFETY: reserved by `reserve`, and nobody refers to what is mapped there any more: loads have ended.
        unsafe { libc::munmap(self.base.cast(), self.bytes as usize) };
    }
}
