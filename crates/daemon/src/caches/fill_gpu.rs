//! Filling memory of a GPU, in the background: one image at a time, by a worker of its own that is there for no longer.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use rekindle_protocol::worker::{CACHE_SLOT, CacheMemory, Cached, ask};
use rekindle_store::{ContentHash, Image};

use super::cache::Cache;
use super::chunks::{self, Chunk, by_hash};
use super::index::{Priority, Slot};
use super::memory::Memory;
use super::shared;
use super::{CacheLease, Caches, lock};
use crate::error::Result;
use crate::workers::{Worker, WorkerError};

/// So many chunks are loaded at once; whoever wants this to stop waits for no more.
const STEP: usize = 64;

/// What an image is put into a GPU's memory with.
struct Filler<'c> {
    caches: &'c Caches,
    image: &'c Image,
    gpu: &'c str,
    priority: Priority,
    /// What host memory has of it.
    lease: CacheLease,
    /// Started when there is something to do.
    worker: OnceCell<Arc<Worker>>,
}

impl Caches {
    /// Puts an image's contents into memory of this GPU, as far as there is room, from host memory where they lie there.
    /// Returns when that is done.
    pub fn fill_gpu(self: &Arc<Caches>, path: &Path, gpu: &str, priority: Priority) -> Result<()> {
        if self.limits.gpu < CACHE_SLOT || !path.starts_with(&self.store) {
            return Ok(());
        }
        let _filling = lock(&self.filling);
        // One that was removed meanwhile needs no cache.
        let Ok(image) = Image::open(path) else { return Ok(()) };
        let mut chunks = chunks::of(&image);
        let priority = self.know(&image, &chunks, priority);
        let lease = self.lend_from(&image, None, priority);
        let filler = Filler { caches: self, image: &image, gpu, priority, lease, worker: OnceCell::new() };
        let apart = filler.fill_shared()?;
        chunks.retain(|chunk| !apart.contains(chunk.part));
        filler.fill_chunks(&chunks)
    }
}

impl Filler<'_> {
    fn worker(&self) -> Result<&Worker> {
        if let Some(worker) = self.worker.get() {
            return Ok(worker);
        }
        let started = self.caches.spares.start(self.gpu, Box::new(|_| ()))?;
        let worker = self.worker.get_or_init(|| started);
        self.lease.hand_to(worker)?;
        Ok(worker)
    }

    fn with_cache<T>(&self, act: impl FnOnce(&mut Cache) -> T) -> T {
        let mut gpus = lock(&self.caches.gpus);
        act(gpus.entry(self.gpu.to_string()).or_insert_with(|| Cache::new(self.caches.limits.gpu)))
    }

    fn fill_chunks(&self, chunks: &[Chunk<'_>]) -> Result<()> {
        let hashes: Vec<_> = chunks.iter().map(|chunk| chunk.hash).collect();
        let claimed = self.with_cache(|cache| cache.index.claim(&hashes, self.priority));
        let places = by_hash(chunks);
        let mut done = 0;
        let mut filled = Ok(());
        while done < claimed.len() && filled.is_ok() && !self.caches.is_to_stop() {
            let memory = claimed[done].1.memory;
            let same = claimed[done..].iter().take(STEP).take_while(|(_, slot)| slot.memory == memory);
            let step = &claimed[done..done + same.count()];
            let mut chunks: Vec<&Chunk<'_>> = step.iter().map(|(hash, _)| places[hash]).collect();
            chunks.sort_by_key(|chunk| (chunk.part, chunk.number));
            filled = self.fill_step(memory, step, &chunks);
            if filled.is_ok() {
                done += step.len();
            }
        }
        let rest = &claimed[done..];
        self.with_cache(|cache| rest.iter().for_each(|(hash, _)| cache.index.drop_chunk(hash)));
        filled
    }

    fn fill_step(&self, memory: u32, step: &[(ContentHash, Slot)], chunks: &[&Chunk<'_>]) -> Result<()> {
        let memory = self.memory(memory)?;
        let into = self.with_cache(|cache| {
            let found = step.iter().filter_map(|(hash, slot)| Some((*hash, cache.at(*slot)?))).collect();
            chunks::rows(chunks.iter().copied(), &found)
        });
        self.fill(&memory, into)?;
        self.with_cache(|cache| step.iter().for_each(|(hash, _)| cache.index.filled(hash)));
        Ok(())
    }

    /// Puts the buffers that instances can share into memories of their own. Names of the parts that lie there.
    fn fill_shared(&self) -> Result<HashSet<String>> {
        let parts = shared::parts(self.image);
        let kept: Vec<ContentHash> = parts.iter().map(|(_, contents)| *contents).collect();
        let mut apart = HashSet::new();
        for (part, contents) in &parts {
            let found = self.with_cache(|cache| cache.shared.find(contents, self.priority).is_some());
            if !found {
                let fits = self.with_cache(|cache| {
                    cache.index.demote(part.chunks.iter().map(|chunk| chunk.hash));
                    cache.fit(part.bytes, self.priority, u64::MAX, &kept)
                });
                if !fits || self.caches.is_to_stop() {
                    break;
                }
                let memory = self.make_memory(part.bytes)?;
                self.fill(&memory, vec![shared::row(part, memory.described.number)])?;
                self.with_cache(|cache| cache.shared.add(*contents, memory, self.priority));
            }
            apart.insert(part.name.clone());
        }
        Ok(apart)
    }

    fn fill(&self, memory: &Memory, into: Vec<Cached>) -> Result<()> {
        let request = ask::FillCache {
            image: self.image.path().to_string_lossy().into_owned(),
            memory: memory.described,
            into,
            cached: self.lease.rows.clone(),
        };
        self.worker()?.ask("fill a cache", request, &[memory.descriptor()])
    }

    /// The memory of this place, made if need be: never of the last that the image needs itself.
    fn memory(&self, place: u32) -> Result<Arc<Memory>> {
        let (made, bytes) =
            self.with_cache(|cache| (cache.memories.get(&place).cloned(), cache.memory_bytes));
        if let Some(memory) = made {
            return Ok(memory);
        }
        let fits = self.with_cache(|cache| {
            let claimed = cache.index.now();
            cache.fit(bytes, self.priority, claimed, &[])
        });
        if !fits {
            let reason = "what is in use or matters more leaves no more of its limit".to_string();
            return Err(WorkerError::Failed { action: "make memory for a cache", reason }.into());
        }
        let memory = Arc::new(self.make_memory(bytes)?);
        self.with_cache(|cache| cache.memories.insert(place, memory.clone()));
        Ok(memory)
    }

    fn make_memory(&self, bytes: u64) -> Result<Memory> {
        let action = "make memory for a cache";
        let worker = self.worker()?;
        let free = worker.status()?.free_bytes.first().copied().unwrap_or_default();
        if free < bytes + self.image.manifest().sizes.gpu {
            let reason = format!("{} MB are free on its GPU, which programs need", free >> 20);
            return Err(WorkerError::Failed { action, reason }.into());
        }
        let memory = CacheMemory { number: self.caches.next_number(), bytes, device: Some(0) };
        let ((), descriptors) = worker.ask_whole(action, ask::MakeCacheMemory { memory }, &[], None)?;
        let reason = || "it sent no descriptor".to_string();
        let descriptor =
            descriptors.into_iter().next().ok_or_else(|| WorkerError::Failed { action, reason: reason() })?;
        Ok(Memory::of_gpu(memory, descriptor))
    }
}

impl Drop for Filler<'_> {
    /// With it goes what it has mapped: whoever waits for this to stop may need the memory.
    fn drop(&mut self) {
        if let Some(worker) = self.worker.get() {
            worker.kill();
        }
    }
}
