//! Filling caches, in the background: one image at a time, on threads that give way to all others.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rekindle_protocol::worker::{CACHE_SLOT, CacheMemory, Cached, ask};
use rekindle_store::{ContentHash, Image, PartKind};

use super::cache::Cache;
use super::chunks::{self, Chunk};
use super::index::{Priority, Slot};
use super::memory::Memory;
use super::shared;
use super::{Caches, lock};
use crate::error::{Error, Result};
use crate::host::resources::{available_memory, give_way};
use crate::workers::Worker;

/// A quarter of the processors fill host memory, and no more than these.
const MOST_THREADS: usize = 4;
/// What is left of the host's memory, whatever the limit.
const LEAST_LEFT: u64 = 1 << 30;
/// So many chunks are loaded to a GPU at once; a restore that wants the worker waits for no more.
const STEP: usize = 64;

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
            give_way();
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

    fn fill_slot(&self, image: &Image, chunk: &Chunk<'_>, slot: Slot) -> std::result::Result<(), String> {
        let memory = self.host_memory(slot.memory)?;
        let part = image.part(PartKind::GpuBuffer, chunk.part).ok_or("a part is missing")?;
        let at = chunk.number * CACHE_SLOT;
        // SAFETY: the slot was claimed for this chunk, and this call alone fills it.
        let bytes = unsafe { memory.slot(slot, CACHE_SLOT.min(part.bytes - at)) };
        let bytes = bytes.ok_or("a slot lies outside of its memory")?;
        image.read_part(part, at, bytes).map_err(|error| error.to_string())
    }

    /// The memory of this place, made if need be.
    fn host_memory(&self, place: u32) -> std::result::Result<Arc<Memory>, String> {
        let mut host = lock(&self.host);
        if let Some(memory) = host.memories.get(&place) {
            return Ok(memory.clone());
        }
        let bytes = host.memory_bytes;
        let available = available_memory();
        if available < bytes + LEAST_LEFT {
            return Err(format!("the host has {} MB of free memory left", available >> 20));
        }
        let memory = Memory::of_host(self.next_number(), bytes).map_err(|error| error.to_string())?;
        let memory = Arc::new(memory);
        host.memories.insert(place, memory.clone());
        Ok(memory)
    }

    /// Has a worker that waits for this image know what host memory has of it, and put it into memory of its GPU. Stops
    /// when the worker is wanted for something else.
    pub fn prepare(
        self: &Arc<Caches>,
        worker: &Worker,
        path: &Path,
        gpu: &str,
        waits: impl Fn() -> bool,
    ) -> Result<()> {
        if self.is_off() || !path.starts_with(&self.store) {
            return Ok(());
        }
        self.fill_host(path, Priority::Made);
        if !waits() {
            return Ok(());
        }
        let _filling = lock(&self.filling);
        let Ok(image) = Image::open(path) else { return Ok(()) };
        let lease = self.lend_from(&image, None, Priority::Made);
        let cached = lease.hand_to(worker, true)?;
        if self.limits.gpu < CACHE_SLOT {
            return Ok(());
        }
        let mut chunks = chunks::of(&image);
        let priority = self.know(&image, &chunks, Priority::Made);
        let apart = self.fill_shared(worker, &image, gpu, &cached, priority, &waits)?;
        chunks.retain(|chunk| !apart.contains(chunk.part));
        let hashes: Vec<_> = chunks.iter().map(|chunk| chunk.hash).collect();
        let claimed = {
            let mut gpus = lock(&self.gpus);
            let cache = gpus.entry(gpu.to_string()).or_insert_with(|| Cache::new(self.limits.gpu));
            cache.index.claim(&hashes, priority)
        };
        let places = by_hash(&chunks);
        let mut done = 0;
        let mut filled = Ok(());
        while done < claimed.len() && waits() && !self.is_to_stop() {
            let memory = claimed[done].1.memory;
            let same = claimed[done..].iter().take(STEP).take_while(|(_, slot)| slot.memory == memory);
            let step = &claimed[done..done + same.count()];
            let rows = |cache: &Cache| {
                let found = step.iter().filter_map(|(hash, slot)| Some((*hash, cache.at(*slot)?))).collect();
                let mut chunks: Vec<&Chunk<'_>> = step.iter().map(|(hash, _)| places[hash]).collect();
                chunks.sort_by_key(|chunk| (chunk.part, chunk.number));
                chunks::rows(chunks.into_iter(), &found)
            };
            let needed = image.manifest().sizes.gpu;
            filled = self.gpu_memory(worker, gpu, memory, needed, priority).and_then(|memory| {
                let into = lock(&self.gpus).get(gpu).map(rows).unwrap_or_default();
                let image = path.to_string_lossy().into_owned();
                let cached = cached.clone();
                let request = ask::FillCache { image, memory: memory.described, into, cached };
                worker.ask("fill a cache", request, &[memory.descriptor()])
            });
            if filled.is_err() {
                break;
            }
            if let Some(cache) = lock(&self.gpus).get_mut(gpu) {
                step.iter().for_each(|(hash, _)| cache.index.filled(hash));
            }
            done += step.len();
        }
        if let Some(cache) = lock(&self.gpus).get_mut(gpu) {
            claimed[done..].iter().for_each(|(hash, _)| cache.index.drop_chunk(hash));
        }
        filled
    }

    /// Puts the buffers that instances can share into memories of their own. Names of the parts that lie there.
    fn fill_shared(
        &self,
        worker: &Worker,
        image: &Image,
        gpu: &str,
        cached: &[Cached],
        priority: Priority,
        waits: impl Fn() -> bool,
    ) -> Result<HashSet<String>> {
        let parts = shared::parts(image);
        let kept: Vec<ContentHash> = parts.iter().map(|(_, contents)| *contents).collect();
        let mut apart = HashSet::new();
        for (part, contents) in &parts {
            let fits = {
                let mut gpus = lock(&self.gpus);
                let cache = gpus.entry(gpu.to_string()).or_insert_with(|| Cache::new(self.limits.gpu));
                if cache.shared.find(contents, priority).is_some() {
                    apart.insert(part.name.clone());
                    continue;
                }
                let own = part.chunks.iter().map(|chunk| chunk.hash);
                cache.index.demote(own);
                cache.fit(part.bytes, priority, u64::MAX, &kept)
            };
            if !waits() || self.is_to_stop() || !fits {
                break;
            }
            let memory = self.make_gpu_memory(worker, part.bytes, image.manifest().sizes.gpu)?;
            let request = ask::FillCache {
                image: image.path().to_string_lossy().into_owned(),
                memory: memory.described,
                into: vec![shared::row(part, memory.described.number)],
                cached: cached.to_vec(),
            };
            worker.ask("fill a cache", request, &[memory.descriptor()])?;
            if let Some(cache) = lock(&self.gpus).get_mut(gpu) {
                cache.shared.add(*contents, memory, priority);
            }
            apart.insert(part.name.clone());
        }
        Ok(apart)
    }

    /// The memory of this place on a GPU, made by the worker if need be: never of the last that the image needs itself.
    fn gpu_memory(
        &self,
        worker: &Worker,
        gpu: &str,
        place: u32,
        needed: u64,
        priority: Priority,
    ) -> Result<Arc<Memory>> {
        let (made, bytes) = match lock(&self.gpus).get(gpu) {
            Some(cache) => (cache.memories.get(&place).cloned(), cache.memory_bytes),
            None => (None, 0),
        };
        if let Some(memory) = made {
            return Ok(memory);
        }
        let fits = lock(&self.gpus).get_mut(gpu).is_none_or(|cache| {
            let claimed = cache.index.now();
            cache.fit(bytes, priority, claimed, &[])
        });
        if !fits {
            let reason = "what is in use or matters more leaves no more of its limit".to_string();
            return Err(Error::Worker { action: "make memory for a cache", reason });
        }
        let memory = Arc::new(self.make_gpu_memory(worker, bytes, needed)?);
        if let Some(cache) = lock(&self.gpus).get_mut(gpu) {
            cache.memories.insert(place, memory.clone());
        }
        Ok(memory)
    }

    fn make_gpu_memory(&self, worker: &Worker, bytes: u64, needed: u64) -> Result<Memory> {
        let action = "make memory for a cache";
        let free = worker.status()?.free_bytes.first().copied().unwrap_or_default();
        if free < bytes + needed {
            let reason = format!("{} MB are free on its GPU, which programs need", free >> 20);
            return Err(Error::Worker { action, reason });
        }
        let memory = CacheMemory { number: self.next_number(), bytes, device: Some(0) };
        let ((), descriptors) = worker.ask_whole(action, ask::MakeCacheMemory { memory }, &[], None)?;
        let reason = || "it sent no descriptor".to_string();
        let descriptor =
            descriptors.into_iter().next().ok_or_else(|| Error::Worker { action, reason: reason() })?;
        Ok(Memory::of_gpu(memory, descriptor))
    }
}

/// The first chunk of each content.
fn by_hash<'c, 'i>(chunks: &'c [Chunk<'i>]) -> HashMap<ContentHash, &'c Chunk<'i>> {
    chunks.iter().rev().map(|chunk| (chunk.hash, chunk)).collect()
}
