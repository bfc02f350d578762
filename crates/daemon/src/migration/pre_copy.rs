//! What is copied to the other GPU while the program runs, so that little is left for when it stands still.
//!
//! ```text
//! program        ──runs──┬ shadow ┬──runs───────────────┬ shadow ┬──runs───────────┬ stands still ─ …
//! host's memory          └ drained: all ┐               └ drained: what is new ┐   └ what is new
//! the other GPU                         └ chunks filled                        └ chunks filled
//! ```
//!
//! A round is the checkpoint of a program that goes on ([A checkpoint](../../../../docs/architecture/checkpoint.md)): its GPU
//! hashes each chunk, and copies those that the store does not have. A worker of its own fills chunks into a cache on the other
//! GPU, where the worker that the program moves to finds them by their hashes; of a program with several GPUs into one on each.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::Round;
use rekindle_protocol::worker::{CACHE_SLOT, CacheMemory, Cached, Contents, Status, ask};
use rekindle_store::{ContentHash, Image, Store};

use crate::caches::chunks::{self, Chunk};
use crate::error::Result;
use crate::fault;
use crate::images::machine;
use crate::sandboxes::quiesce::QuiesceBarrier;
use crate::workers::{Worker, WorkerError, gpu_half};

use super::slots::Slots;
use super::{Half, Migration, plan};

/// A further round is not worth it once so little was new.
const LITTLE: u64 = 64 << 20;
/// This part of a GPU is left to others by a shadow.
const LEFT: u64 = 16;
/// What the worker that fills takes of the other GPU, beside what it fills.
const CONTEXT: u64 = 1 << 30;
/// Room for chunks that are new in later rounds.
const LATER: u64 = 256 << 20;

/// Chunks of one half that lie on the other GPUs.
pub(super) struct PreCopy {
    filler: Arc<Worker>,
    /// By the program's numbers; none on one that has no room, or nothing to be filled.
    caches: Vec<Option<GpuPreCopy>>,
}

/// Those on one of them.
struct GpuPreCopy {
    memory: CacheMemory,
    descriptor: OwnedFd,
    slots: Slots,
}

impl Migration<'_> {
    /// Copies what there is of a half, again and again as long as that makes less of it, at most so many times and so many
    /// bytes on each GPU. What it comes to, if it was worth a try.
    pub(super) fn copy_rounds(
        &self,
        half: &Half,
        store: &Store,
        (most, budgets): (u32, Option<&[u64]>),
        rounds: &mut Vec<Round>,
    ) -> Result<Option<PreCopy>> {
        let Some(budgets) = budgets.filter(|_| most > 0) else { return Ok(None) };
        let mut pre_copy = None;
        for number in 1..=most {
            self.reply.check_wanted()?;
            let (round, is_useful) = self.round(half, store, (number, budgets), &mut pre_copy)?;
            let before = rounds.last().map_or(u64::MAX, |last| last.bytes);
            rounds.push(round);
            fault::point("migrate-round")?;
            if !is_useful || round.bytes <= LITTLE || round.bytes > before / 2 {
                break;
            }
        }
        for cache in pre_copy.iter().flat_map(PreCopy::caches) {
            let known = ask::Cache { memories: vec![cache.memory], register: false };
            half.target.ask("take what was copied ahead", known, &[cache.descriptor.as_fd()])?;
        }
        Ok(pre_copy)
    }

    /// How much can be filled for each half, on each GPU; none where the program would stand still while it is copied, or where
    /// nothing can be.
    pub(super) fn budgets(&self, there: &[Status], stays: &[usize]) -> Vec<Option<Vec<u64>>> {
        let all = self.halves.iter().zip(there).map(|(half, there)| {
            let places = 0..half.status.devices.len();
            let budgets: Option<Vec<u64>> =
                places.map(|place| self.budget(half, there, (place, stays.contains(&place)))).collect();
            budgets.filter(|budgets| budgets.iter().any(|budget| *budget >= CACHE_SLOT))
        });
        all.collect()
    }

    /// How much can be filled for a half on the GPU at this place; none if a copy of what the program has there would not fit
    /// beside it.
    fn budget(&self, half: &Half, there: &Status, (place, stays): (usize, bool)) -> Option<u64> {
        let (own, needed) = (half.bytes_on(place), self.bytes_on(place));
        let total = half.status.devices.get(place).map_or(0, |device| device.total_memory);
        let shadow = needed + needed / 1024 + total / LEFT;
        if own > 0 && plan::free_on(&half.status, place) < shadow {
            return None;
        }
        let fillers = self.halves.len() as u64 * CONTEXT.min(total / LEFT);
        // On a GPU that the program keeps the copy is beside what is filled.
        let taken = needed + fillers + plan::SPARE + if stays { shadow } else { 0 };
        let budget = plan::free_on(there, place).saturating_sub(taken);
        // By what each has.
        let share = u128::from(budget) * u128::from(own) / u128::from(needed.max(1));
        Some(u64::try_from(share).unwrap_or_default())
    }

    fn round(
        &self,
        half: &Half,
        store: &Store,
        (number, budgets): (u32, &[u64]),
        pre_copy: &mut Option<PreCopy>,
    ) -> Result<(Round, bool)> {
        let began = Instant::now();
        let draft = store.begin(&self.image_name(half, number))?;
        self.reply.progress("copy ahead", u64::from(number), 0);
        self.timeline.time("code", || gpu_half::save_code(&half.source, draft.path()))?;
        let saved_us = self.timeline.elapsed_us();
        let contents = Contents::Shadowed;
        let stopped = Instant::now();
        let barrier =
            self.timeline.time("quiesce", || QuiesceBarrier::begin(self.sandbox, &half.source, contents))?;
        let parts = gpu_half::save(&half.source, draft.path(), contents, self.timeline)?;
        self.timeline.time("resume", || barrier.resume())?;
        let stopped_us = stopped.elapsed().as_micros() as u64;
        let drained = fault::point("migrate-draining")
            .and_then(|()| gpu_half::drain(&half.source, saved_us, Duration::ZERO, self.timeline))
            .inspect_err(|_| drop(gpu_half::give_up_drain(&half.source)))?;
        draft.adopt(parts.into_iter().chain(drained).collect())?;
        draft.manifest().gpus = machine::gpus(&half.status);
        let image = draft.commit()?;
        let bytes = half.new_in(&image, pre_copy.as_ref());
        let filled = self.timeline.time("fill ahead", || self.fill(half, &image, budgets, pre_copy));
        if let Err(error) = &filled {
            log::warn!("less is copied ahead for {:?}: {error}", self.sandbox.name());
            *pre_copy = None;
        }
        let round = Round { bytes, duration_us: began.elapsed().as_micros() as u64, stopped_us };
        Ok((round, filled.is_ok()))
    }

    fn fill(
        &self,
        half: &Half,
        image: &Image,
        budgets: &[u64],
        pre_copy: &mut Option<PreCopy>,
    ) -> Result<()> {
        for (place, budget) in budgets.iter().enumerate().filter(|(_, budget)| **budget >= CACHE_SLOT) {
            let chunks = chunks::of_gpu(image, place);
            let bytes = chunks::by_hash(&chunks).len() as u64 * CACHE_SLOT;
            if bytes == 0 {
                continue;
            }
            if pre_copy.is_none() {
                let filler = self.daemon.pool.spares.start(self.gpu, Box::new(|_| ()))?;
                let caches = half.status.devices.iter().map(|_| None).collect();
                *pre_copy = Some(PreCopy { filler, caches });
            }
            let Some(pre_copy) = pre_copy else { continue };
            let number = self.sandbox.caches().next_number();
            pre_copy.take_in(image, &chunks, (place, number, (bytes + LATER).min(*budget)))?;
        }
        Ok(())
    }

    pub(super) fn image_name(&self, half: &Half, number: u32) -> String {
        format!("{}.{}.{number}", self.sandbox.id, half.target.number())
    }
}

impl Half {
    /// Bytes of an image's chunks that are not there yet.
    pub(super) fn new_in(&self, image: &Image, pre_copy: Option<&PreCopy>) -> u64 {
        let on = |place: usize| {
            let chunks = chunks::of_gpu(image, place);
            let cache = pre_copy.and_then(|pre_copy| pre_copy.caches.get(place)?.as_ref());
            let is_new = |hash: &&ContentHash| !cache.is_some_and(|cache| cache.slots.has(hash));
            chunks::by_hash(&chunks).keys().filter(is_new).count() as u64 * CACHE_SLOT
        };
        (0..self.status.devices.len()).map(on).sum()
    }
}

impl PreCopy {
    fn caches(&self) -> impl Iterator<Item = &GpuPreCopy> {
        self.caches.iter().flatten()
    }

    /// Fills what is new of an image's chunks on the GPU at this place, in memory of this number and size, which is made at the
    /// first time.
    fn take_in(
        &mut self,
        image: &Image,
        chunks: &[Chunk<'_>],
        (place, number, bytes): (usize, u32, u64),
    ) -> Result<()> {
        let Some(cache) = self.caches.get_mut(place) else { return Ok(()) };
        let cache = match cache {
            Some(cache) => cache,
            none => none.insert(GpuPreCopy::make(&self.filler, place, (number, bytes))?),
        };
        let (places, into) = cache.slots.place(chunks);
        let image = image.path().to_string_lossy().into_owned();
        let request = ask::FillCache { image, memory: cache.memory, into, cached: Vec::new() };
        self.filler.ask("copy ahead", request, &[cache.descriptor.as_fd()])?;
        cache.slots.filled(places);
        Ok(())
    }

    /// Where chunks of this image lie.
    pub(super) fn rows(&self, image: &Image) -> Vec<Cached> {
        let on = |(place, cache): (usize, &Option<GpuPreCopy>)| {
            let cache = cache.as_ref()?;
            Some(cache.slots.rows(&chunks::of_gpu(image, place)))
        };
        self.caches.iter().enumerate().filter_map(on).flatten().collect()
    }
}

impl GpuPreCopy {
    fn make(filler: &Worker, place: usize, (number, bytes): (u32, u64)) -> Result<GpuPreCopy> {
        let slots = bytes / CACHE_SLOT;
        let memory = CacheMemory { number, bytes: slots * CACHE_SLOT, device: Some(place) };
        let action = "make memory to copy ahead to";
        let ((), descriptors) = filler.ask_whole(action, ask::MakeCacheMemory { memory }, &[], None)?;
        let reason = "it sent no descriptor".to_string();
        let descriptor = descriptors.into_iter().next().ok_or(WorkerError::Failed { action, reason })?;
        Ok(GpuPreCopy { memory, descriptor, slots: Slots::new(number, slots) })
    }
}

impl Drop for PreCopy {
    fn drop(&mut self) {
        let filler = self.filler.clone();
        std::thread::spawn(move || filler.kill());
    }
}
