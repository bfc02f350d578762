//! Contents of images kept where a restore finds them at once: in pinned memory of the host, and in memory of GPUs.
//!
//! ```text
//!   store ──read, checked──▶ host cache: memfds of the daemon ──DMA──▶ buffers of a restored program
//!     └───────────┴─────────▶ GPU cache: descriptors of GPU memory ──copy on the GPU──▶ ┘
//! ```
//!
//! Both hold chunks by the hashes of their contents, equal ones once, up to a limit in bytes ([`index`]). They are filled
//! beside the programs, with the image that was stopped or restored last: the host's by threads of this process, the GPU's
//! by a worker that is there for that alone ([`fill_gpu`]). Workers that wait for sandboxes have all memory of the host
//! [known](Caches::acquaint) to their GPUs ahead. What is put in is checked against its hash; from then on only this
//! process, or a worker that fills a slot, can write there. What a restore uses is [lent](Caches::lend) to it until its
//! worker has loaded all, and stays as it is for so long. A daemon that dies takes the caches with it; workers that read
//! from them have them mapped, and read on.
//!
//! Buffers that programs restored from an image were seen to leave as they are lie on the GPU in memories of their own
//! ([`shared`]), which instances map read-only in place of memory of theirs.

mod cache;
pub mod chunks;
mod fill_gpu;
mod fill_host;
mod index;
mod limits;
mod memory;
mod shared;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rekindle_protocol::worker::{CACHE_SLOT, Cached, MOST_DESCRIPTORS, Status, ask};
use rekindle_store::{ContentHash, Image};
use serde_json::{Value, json};

use crate::error::Result;
use crate::workers::{Spares, Worker};

use cache::Cache;
use memory::Memory;

pub use index::Priority;
pub use limits::{CacheLimits, parse_bytes};

pub struct Caches {
    limits: CacheLimits,
    /// Images of this store alone are cached.
    store: PathBuf,
    /// Where workers that fill come from.
    spares: Arc<Spares>,
    host: Mutex<Cache>,
    /// By the GPU's name, as `--gpu` gives it.
    gpus: Mutex<BTreeMap<String, Cache>>,
    /// The chunks of images, or of their halves, that were filled in or lent, by their paths.
    images: Mutex<HashMap<PathBuf, CachedImage>>,
    numbers: AtomicU32,
    /// Held by the one that fills.
    filling: Mutex<()>,
    /// How many wait for that one to stop.
    waiting: AtomicUsize,
}

/// What is known of an image.
struct CachedImage {
    chunks: Vec<ContentHash>,
    /// Contents of its buffers that can be shared, with their sizes.
    shared: Vec<(ContentHash, u64)>,
    /// The highest that it was filled in or lent with.
    priority: Priority,
}

/// Memories that an instance has mapped: they count as used as long as this lives.
pub struct Mapped(#[expect(dead_code, reason = "what counts is that it is held")] Vec<Arc<Memory>>);

impl Caches {
    pub fn new(limits: CacheLimits, store: PathBuf, spares: Arc<Spares>) -> Arc<Caches> {
        Arc::new(Caches {
            limits,
            store,
            spares,
            host: Mutex::new(Cache::new(limits.host)),
            gpus: Mutex::default(),
            images: Mutex::default(),
            numbers: AtomicU32::new(0),
            filling: Mutex::default(),
            waiting: AtomicUsize::new(0),
        })
    }

    /// Whether instances may share what they do not write to.
    pub fn shares(&self) -> bool {
        self.limits.gpu >= CACHE_SLOT && !shared::is_off()
    }

    fn is_off(&self) -> bool {
        self.limits.host < CACHE_SLOT && self.limits.gpu < CACHE_SLOT
    }

    /// Lends what there is of an image, for a restore on this GPU.
    pub fn lend(self: &Arc<Caches>, image: &Image, gpu: &str) -> CacheLease {
        self.lend_from(image, Some(gpu), Priority::Restored)
    }

    fn lend_from(self: &Arc<Caches>, image: &Image, gpu: Option<&str>, priority: Priority) -> CacheLease {
        let mut lease = CacheLease::nothing(self);
        if self.is_off() || !image.path().starts_with(&self.store) {
            return lease;
        }
        let mut chunks = chunks::of(image);
        self.know(image, &chunks, priority);
        let mut found = HashMap::new();
        let mut memories = BTreeMap::new();
        if let Some(gpu) = gpu
            && let Some(cache) = lock(&self.gpus).get_mut(gpu)
        {
            for (part, contents) in shared::parts(image) {
                let Some(memory) = cache.shared.find(&contents, priority) else { continue };
                lease.rows.push(shared::row(part, memory.described.number));
                lease.shared.push(memory);
                chunks.retain(|chunk| chunk.part != part.name);
            }
            let hashes = chunks.iter().map(|chunk| chunk.hash);
            lease.gpu = Some((gpu.to_string(), cache.borrow(hashes, priority, &mut found, &mut memories)));
        }
        let rest: Vec<_> =
            chunks.iter().map(|chunk| chunk.hash).filter(|hash| !found.contains_key(hash)).collect();
        lease.host = lock(&self.host).borrow(rest.into_iter(), priority, &mut found, &mut memories);
        lease.rows.extend(chunks::rows(chunks.iter(), &found));
        lease.memories = memories.into_values().chain(lease.shared.iter().cloned()).collect();
        lease
    }

    /// Has memory of the host known to the GPU of a worker that has nobody to serve yet, for as long as it `waits`.
    pub fn acquaint(&self, worker: &Worker, waits: impl Fn() -> bool) -> Result<()> {
        let memories: Vec<_> = lock(&self.host).memories.values().cloned().collect();
        // One at a time lets the worker do something else in between.
        for memory in memories.iter().take_while(|_| waits()) {
            give(worker, std::slice::from_ref(memory), true)?;
        }
        Ok(())
    }

    /// Has caches on the GPU give memory back until a restore that lacks so many bytes has them, or they have no more.
    pub fn make_room(&self, worker: &Worker, gpu: &str, missing: u64, status: Status) -> Result<Status> {
        if missing == 0 || !lock(&self.gpus).contains_key(gpu) {
            return Ok(status);
        }
        // A worker that fills one has its memory mapped.
        let _still = self.hold_still();
        let mut gained = 0;
        if let Some(cache) = lock(&self.gpus).get_mut(gpu) {
            while gained < missing {
                let Some(bytes) = cache.give_back() else { break };
                gained += bytes;
            }
        }
        if gained == 0 { Ok(status) } else { worker.status() }
    }

    /// Nobody fills in anything as long as this is held: of images that are about to be removed, or where others need room.
    pub fn hold_still(&self) -> MutexGuard<'_, ()> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let held = lock(&self.filling);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        held
    }

    fn is_to_stop(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The image is no more: what it alone needed goes first.
    pub fn forget(&self, image: &Path) {
        let halves: Vec<CachedImage> = {
            let mut images = lock(&self.images);
            images.extract_if(|path, _| path.starts_with(image)).map(|(_, known)| known).collect()
        };
        for known in halves {
            lock(&self.host).index.demote(known.chunks.iter().copied());
            for cache in lock(&self.gpus).values_mut() {
                cache.index.demote(known.chunks.iter().copied());
                cache.shared.demote(known.shared.iter().map(|(contents, _)| *contents));
            }
        }
    }

    /// Limits and what is held, as `rekindle images --json` prints it.
    pub fn shown(&self) -> Value {
        let gpus: serde_json::Map<_, _> =
            lock(&self.gpus).iter().map(|(gpu, cache)| (gpu.clone(), cache.shown())).collect();
        json!({ "host": lock(&self.host).shown(), "gpu_limit_bytes": self.limits.gpu, "gpus": gpus })
    }

    /// How much of an image lies in which cache, bytes.
    pub fn shown_of(&self, image: &Path) -> Value {
        let images = lock(&self.images);
        let halves = || images.iter().filter(|(path, _)| path.starts_with(image)).map(|(_, known)| known);
        // Halves may have contents in common.
        let chunks: HashSet<ContentHash> = halves().flat_map(|known| known.chunks.iter().copied()).collect();
        let shared: HashSet<(ContentHash, u64)> =
            halves().flat_map(|known| known.shared.iter().copied()).collect();
        let bytes = |cache: &Cache| {
            let shared = shared.iter().filter(|(contents, _)| cache.shared.has(contents));
            cache.index.count(chunks.iter().copied()) * CACHE_SLOT
                + shared.map(|(_, bytes)| bytes).sum::<u64>()
        };
        let gpus: serde_json::Map<_, _> =
            lock(&self.gpus).iter().map(|(gpu, cache)| (gpu.clone(), json!(bytes(cache)))).collect();
        json!({ "host": bytes(&lock(&self.host)), "gpus": gpus })
    }

    /// Its priority from now on.
    fn know(&self, image: &Image, chunks: &[chunks::Chunk<'_>], priority: Priority) -> Priority {
        let distinct: HashSet<ContentHash> = chunks.iter().map(|chunk| chunk.hash).collect();
        let shared =
            shared::parts(image).into_iter().map(|(part, contents)| (contents, part.bytes)).collect();
        let mut images = lock(&self.images);
        let before = images.get(image.path()).map_or(priority, |known| known.priority);
        let priority = before.max(priority);
        let known = CachedImage { chunks: distinct.into_iter().collect(), shared, priority };
        images.insert(image.path().to_path_buf(), known);
        priority
    }

    /// A number that no other memory has.
    pub fn next_number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

/// What a restore may read from caches until this is dropped.
pub struct CacheLease {
    caches: Arc<Caches>,
    host: Vec<ContentHash>,
    gpu: Option<(String, Vec<ContentHash>)>,
    memories: Vec<Arc<Memory>>,
    /// Those of them that may be mapped for good.
    shared: Vec<Arc<Memory>>,
    rows: Vec<Cached>,
}

impl CacheLease {
    fn nothing(caches: &Arc<Caches>) -> CacheLease {
        CacheLease {
            caches: caches.clone(),
            host: Vec::new(),
            gpu: None,
            memories: Vec::new(),
            shared: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// What the instance may have mapped for as long as it lives.
    pub fn mapped(&self) -> Mapped {
        Mapped(self.shared.clone())
    }

    /// Whether there is such memory.
    pub fn shares(&self) -> bool {
        !self.shared.is_empty()
    }

    /// Gives the worker the memories that the chunks lie in; where each lies is returned.
    pub fn hand_to(&self, worker: &Worker) -> Result<Vec<Cached>> {
        for memories in self.memories.chunks(MOST_DESCRIPTORS) {
            give(worker, memories, false)?;
        }
        Ok(self.rows.clone())
    }
}

/// Gives a worker memories to read from; with `register` those of the host are made known to its GPU, which takes time.
fn give(worker: &Worker, memories: &[Arc<Memory>], register: bool) -> Result<()> {
    let descriptors: Vec<_> = memories.iter().map(|memory| memory.descriptor()).collect();
    let memories = memories.iter().map(|memory| memory.described).collect();
    worker.ask("read from caches", ask::Cache { memories, register }, &descriptors)
}

impl Drop for CacheLease {
    fn drop(&mut self) {
        lock(&self.caches.host).index.give_back(self.host.iter());
        if let Some((gpu, chunks)) = &self.gpu
            && let Some(cache) = lock(&self.caches.gpus).get_mut(gpu)
        {
            cache.index.give_back(chunks.iter());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
