//! Filling host memory, in the background: one image at a time, on threads that give way to all others.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rekindle_protocol::worker::CACHE_SLOT;
use rekindle_store::{Image, PartKind};

use super::chunks::{self, Chunk, by_hash};
use super::index::{Priority, Slot};
use super::memory::Memory;
use super::{Caches, lock};
use crate::host::resources::available_memory;

/// A quarter of the processors fill host memory, and no more than these.
const MOST_THREADS: usize = 4;
/// What is left of the host's memory, whatever the limit.
const LEAST_LEFT: u64 = 1 << 30;

/// Why a chunk is not there.
#[derive(Debug, thiserror::Error)]
enum FillError {
    #[error("a part is missing")]
    NoPart,
    #[error("a slot lies outside of its memory")]
    Outside,
    #[error("the host has {} MB of free memory left", available >> 20)]
    NoRoom { available: u64 },
    #[error(transparent)]
    Memory(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] rekindle_store::Error),
}

impl Caches {
    /// Puts an image's contents into host memory, as far as there is room. Returns when that is done.
    pub fn fill_host(&self, path: &Path, priority: Priority) {
        if lock(&self.host).is_off() || !path.starts_with(&self.store) {
            return;
        }
        let _filling = lock(&self.filling);
        // One that was removed meanwhile needs no cache.
        let Ok(image) = Image::open(path) else { return };
        let chunks = chunks::of(&image);
        let priority = self.know(&image, &chunks, priority);
        let hashes: Vec<_> = chunks.iter().map(|chunk| chunk.hash).collect();
        let claimed = lock(&self.host).index.claim(&hashes, priority);
        let places = by_hash(&chunks);
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || {
            rekindle_parallel::give_way(rekindle_parallel::IN_THE_BACKGROUND);
            while let Some((hash, slot)) = claimed.get(next.fetch_add(1, Ordering::Relaxed)) {
                let done = if failed.load(Ordering::Relaxed) || self.is_to_stop() {
                    Ok(false)
                } else {
                    self.fill_slot(&image, places[hash], *slot).map(|()| true)
                };
                let mut host = lock(&self.host);
                match done {
                    Ok(true) => host.index.filled(hash),
                    Ok(false) => host.index.drop_chunk(hash),
                    Err(problem) => {
                        host.index.drop_chunk(hash);
                        if !failed.swap(true, Ordering::Relaxed) {
                            log::warn!("image {:?} is not cached whole: {problem}", image.manifest().name);
                        }
                    }
                }
            }
        };
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        std::thread::scope(|scope| {
            // The caller's own priority stays as it is.
            (0..(processors / 4).clamp(1, MOST_THREADS)).for_each(|_| drop(scope.spawn(work)));
        });
    }

    fn fill_slot(&self, image: &Image, chunk: &Chunk<'_>, slot: Slot) -> std::result::Result<(), FillError> {
        let memory = self.host_memory(slot.memory)?;
        let part = image.part(PartKind::GpuBuffer, chunk.part).ok_or(FillError::NoPart)?;
        let at = chunk.number * CACHE_SLOT;
        // SAFETY: the slot was claimed for this chunk, and this call alone fills it.
        let bytes = unsafe { memory.slot(slot, CACHE_SLOT.min(part.bytes - at)) };
        let bytes = bytes.ok_or(FillError::Outside)?;
        Ok(image.read_part(part, at, bytes)?)
    }

    /// The memory of this place, made if need be.
    fn host_memory(&self, place: u32) -> std::result::Result<Arc<Memory>, FillError> {
        let mut host = lock(&self.host);
        if let Some(memory) = host.memories.get(&place) {
            return Ok(memory.clone());
        }
        let bytes = host.memory_bytes;
        let available = available_memory();
        if available < bytes + LEAST_LEFT {
            return Err(FillError::NoRoom { available });
        }
        let memory = Memory::of_host(self.next_number(), bytes)?;
        let memory = Arc::new(memory);
        host.memories.insert(place, memory.clone());
        Ok(memory)
    }
}
