//! Where the contents of a part come from when it is loaded: caches, or the store.
//!
//! A part is cut into [extents](Extent), each of which comes from one place ([`Sources::cut`]). An extent is brought in
//! three steps, which whoever orders them need not tell apart: what the device can do by itself is
//! [enqueued](Sources::fill); all else is [brought](Sources::bring) by a [`Block`], whose copy is then under way, or will be
//! when what lies on the [disk](super::disk) was read; and it is there once that was [settled](Sources::settle), its hash
//! compared.
//!
//! What caches hold was checked when it was put there; what the store holds is checked now, also where the device
//! copies it from where it [lies](super::resident).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rekindle_device::{MemorySet, Stream};
use rekindle_protocol::worker::CACHE_SLOT;
use rekindle_store::{ContentHash, Encoding, Image, Part, RawChunk};

use super::block::{Block, Gpu};
use super::cache::{CacheLocation, Views};
use super::disk::Reader;
use super::error::{Result, device as device_error};
use super::resident::Resident;
use crate::hashing::Hasher;

/// The most that is copied at once from host memory that the device knows. More at a time is no faster.
const COPY: u64 = 16 << 20;
/// The most that a device is asked for at once of what it does alone: whoever needs it waits for all of it.
const STRIDE: u64 = 256 << 20;

/// Consecutive bytes of a part that come from one place, and where they are to go.
pub(super) struct Extent<'i> {
    pub part: &'i Part,
    /// Within the part, from the start of a chunk.
    pub range: Range<u64>,
    /// Of the first byte, on the device.
    pub address: u64,
}

impl Extent<'_> {
    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// An extent on its way to the device, which is to hash to this.
#[must_use]
pub(super) struct Unproved<'i> {
    extent: Extent<'i>,
    expected: ContentHash,
}

/// What became of an extent that was to be brought.
pub(super) enum Brought<'i> {
    /// Its copy is under way.
    Copies(Option<Unproved<'i>>),
    /// It lies on the disk, and is to be read first.
    Lies(Cold<'i>),
}

/// An extent that no memory has.
pub(super) struct Cold<'i> {
    extent: Extent<'i>,
    chunk: RawChunk,
}

impl Cold<'_> {
    /// Begins to read it.
    ///
    /// # Safety
    /// As [`Reader::begin`] has it; the block has room for the largest chunk.
    pub(super) unsafe fn begin(&self, reader: &mut Reader<'_>, number: usize, into: *mut u8) -> Result<()> {
        // SAFETY: as the caller has promised.
        let begun = unsafe { reader.begin(number, &self.chunk, into) };
        begun.map_err(|error| self.chunk.unreadable(error).into())
    }
}

/// All places that the contents of one image may come from.
pub(super) struct Sources<'i> {
    image: &'i Image,
    views: &'i Views,
    resident: Option<&'i Resident>,
    zeros: AtomicU64,
    gpu_cache: AtomicU64,
    host_cache: AtomicU64,
    registered: AtomicU64,
    store: AtomicU64,
    disk: AtomicU64,
}

/// What a cache has of an extent, in memory that the views keep.
enum Hit {
    Device { address: u64 },
    Host { address: u64, registered: bool },
}

impl<'i> Sources<'i> {
    pub(super) fn of(image: &'i Image, views: &'i Views, resident: Option<&'i Resident>) -> Sources<'i> {
        let none = || AtomicU64::new(0);
        Sources {
            image,
            views,
            resident,
            zeros: none(),
            gpu_cache: none(),
            host_cache: none(),
            registered: none(),
            store: none(),
            disk: none(),
        }
    }

    /// Where the extent of a part ends that begins at `at`.
    pub(super) fn cut(&self, part: &Part, at: u64) -> u64 {
        let size = part.chunk_bytes.clamp(1, CACHE_SLOT);
        if size != part.chunk_bytes {
            return (at + size).min(part.bytes);
        }
        let number = at / size;
        let most = |bytes: u64| (number + (bytes / size).max(1)) * size;
        let end = if is_zero(part, number) {
            let zeros = (number..).take_while(|number| is_zero(part, *number)).count() as u64;
            ((number + zeros) * size).min(most(STRIDE))
        } else {
            match self.views.find(&part.name, number).filter(|_| size == CACHE_SLOT) {
                Some(run) => {
                    let end = (number + run.left(number)) * size;
                    match run.at() {
                        CacheLocation::Device(_) => end.min(most(STRIDE)),
                        CacheLocation::Host(memory) if memory.is_registered() => end.min(most(COPY)),
                        CacheLocation::Host(_) => most(0),
                    }
                }
                None => most(0),
            }
        };
        end.min(part.bytes)
    }

    /// Enqueues what the device does by itself on this stream; false if the extent has to be brought.
    pub(super) fn fill(&self, gpu: &Gpu, extent: &Extent<'i>, stream: Stream) -> Result<bool> {
        let (address, bytes) = (extent.address, extent.bytes());
        if is_zero(extent.part, extent.range.start / extent.part.chunk_bytes.max(1)) {
            let set = MemorySet { address, pitch: bytes, value: 0, element: 1, width: bytes, height: 1 };
            gpu.device.bind().and_then(|()| gpu.device.set(&set, stream)).map_err(failed)?;
            self.zeros.fetch_add(bytes, Ordering::Relaxed);
        } else if let Some(Hit::Device { address: from }) = self.hit(extent, gpu) {
            let copied = gpu.device.bind().and_then(|()| gpu.device.copy(address, from, bytes, stream));
            copied.map_err(failed)?;
            self.gpu_cache.fetch_add(bytes, Ordering::Relaxed);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Begins the extent's copy to the device, once the block's former one is done. That one is to be settled already.
    /// With `reader` it may be left on the disk, for the caller to read.
    pub(super) fn bring(
        &self,
        gpu: &Gpu,
        extent: Extent<'i>,
        block: &mut Block<'_>,
        reader: Option<&mut Reader<'_>>,
    ) -> Result<Brought<'i>> {
        let (part, offset, count) = (extent.part, extent.range.start, extent.bytes() as usize);
        if let Some(Hit::Host { address, registered }) = self.hit(&extent, gpu) {
            if registered {
                block.put_from(gpu, extent.address, address, count as u64, false).map_err(failed)?;
            } else {
                let bytes = block.bytes(count).map_err(failed)?;
                // SAFETY: the run lies within its mapping, which the views keep; the block is elsewhere.
                unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), count) };
                block.put(gpu, extent.address, count).map_err(failed)?;
            }
            self.host_cache.fetch_add(count as u64, Ordering::Relaxed);
            return Ok(Brought::Copies(None));
        }
        if let Some((address, expected)) = self.registered(&extent, block.capacity() as u64) {
            let by_device = gpu.hasher.is_some() && Hasher::takes(count as u64);
            if !by_device {
                // SAFETY: so many bytes of a file are mapped there for as long as the resident memory lives.
                let found =
                    ContentHash::of(unsafe { std::slice::from_raw_parts(address as *const u8, count) });
                if found != expected {
                    return Err(self.image.damaged(part, offset, found).into());
                }
            }
            block.put_from(gpu, extent.address, address, count as u64, by_device).map_err(failed)?;
            self.registered.fetch_add(count as u64, Ordering::Relaxed);
            return Ok(Brought::Copies(by_device.then_some(Unproved { extent, expected })));
        }
        let room = block.capacity() as u64;
        let bytes = block.bytes(count).map_err(failed)?;
        let by_device = gpu.hasher.is_some() && Hasher::takes(count as u64);
        let mut chunk = match by_device || reader.is_some() {
            true => self.image.open_raw(part, offset, count as u64)?,
            false => None,
        };
        if let Some(reader) = reader
            && let Some(chunk) = chunk.take_if(|chunk| chunk.direct_bytes() <= room && reader.takes(chunk))
        {
            return Ok(Brought::Lies(Cold { extent, chunk }));
        }
        let chunk = chunk.filter(|_| by_device);
        let expected = match chunk {
            Some(chunk) => {
                chunk.read_from(0, bytes)?;
                Some(chunk.hash())
            }
            None => {
                self.image.read_part(part, offset, bytes)?;
                None
            }
        };
        block.put(gpu, extent.address, count).map_err(failed)?;
        self.store.fetch_add(count as u64, Ordering::Relaxed);
        Ok(Brought::Copies(expected.map(|expected| Unproved { extent, expected })))
    }

    /// Begins the copy of what was read from the disk. `landed` is what its read has returned.
    pub(super) fn pass_on(
        &self,
        gpu: &Gpu,
        cold: Cold<'i>,
        landed: std::io::Result<usize>,
        block: &mut Block<'_>,
        reader: &Reader<'_>,
    ) -> Result<Option<Unproved<'i>>> {
        let Cold { extent, chunk } = cold;
        let (count, expected) = (extent.bytes() as usize, chunk.hash());
        let bytes = block.bytes(count).map_err(failed)?;
        let there = match landed {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                reader.refuse(&error);
                0
            }
            landed => landed.map_err(|error| chunk.unreadable(error))?,
        };
        if let Some(rest) = bytes.get_mut(there..).filter(|rest| !rest.is_empty()) {
            chunk.set_direct(false).map_err(|error| chunk.unreadable(error))?;
            chunk.read_from(there as u64, rest)?;
        }
        let by_device = gpu.hasher.is_some() && Hasher::takes(count as u64);
        if !by_device {
            let found = ContentHash::of(bytes);
            if found != expected {
                return Err(self.image.damaged(extent.part, extent.range.start, found).into());
            }
        }
        block.put(gpu, extent.address, count).map_err(failed)?;
        self.disk.fetch_add(count as u64, Ordering::Relaxed);
        Ok(by_device.then_some(Unproved { extent, expected }))
    }

    /// Waits for the block's copy, and compares what the device has found with what it was to find.
    pub(super) fn settle(&self, block: &mut Block<'_>, open: Option<Unproved<'i>>) -> Result<()> {
        let found = block.hash().map_err(failed)?;
        match open {
            Some(Unproved { extent, expected }) if found != Some(expected) => {
                let found = found.unwrap_or_else(|| ContentHash::of(&[]));
                Err(self.image.damaged(extent.part, extent.range.start, found).into())
            }
            _ => Ok(()),
        }
    }

    /// Bytes so far, by where they came from.
    pub(super) fn tally(&self) -> BTreeMap<String, u64> {
        let counts = [
            ("zeros", &self.zeros),
            ("GPU cache", &self.gpu_cache),
            ("host cache", &self.host_cache),
            ("registered", &self.registered),
            ("store", &self.store),
            ("disk", &self.disk),
        ];
        let counts = counts.map(|(name, count)| (name.to_string(), count.load(Ordering::Relaxed)));
        counts.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Where the extent lies in memory that the device knows, if it is one whole chunk that does, and what it hashes to.
    fn registered(&self, extent: &Extent<'_>, most: u64) -> Option<(u64, ContentHash)> {
        let number = extent.range.start / extent.part.chunk_bytes.max(1);
        let chunk = extent.part.chunks.get(number as usize)?;
        let whole = chunk.bytes == extent.bytes() && chunk.bytes <= most;
        let raw = whole && chunk.encoding == Encoding::Raw && extent.part.file.is_none();
        Some((self.resident.filter(|_| raw)?.find(&chunk.hash)?, chunk.hash))
    }

    fn hit(&self, extent: &Extent<'_>, gpu: &Gpu) -> Option<Hit> {
        if extent.part.chunk_bytes != CACHE_SLOT {
            return None;
        }
        let number = extent.range.start / CACHE_SLOT;
        let run = self.views.find(&extent.part.name, number)?;
        match run.at() {
            CacheLocation::Device(memory) => Arc::ptr_eq(memory.device(), &gpu.device)
                .then(|| Hit::Device { address: run.address(number) }),
            CacheLocation::Host(memory) => {
                Some(Hit::Host { address: run.address(number), registered: memory.is_registered() })
            }
        }
    }
}

fn is_zero(part: &Part, number: u64) -> bool {
    let chunk = part.chunks.get(number as usize);
    part.file.is_none() && chunk.is_some_and(|chunk| chunk.encoding == Encoding::Zero)
}

fn failed(code: rekindle_cuda::CuResult) -> super::Error {
    device_error("copy a buffer in")(code)
}
