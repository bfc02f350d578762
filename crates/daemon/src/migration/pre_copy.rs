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
//! GPU, where the worker that the program moves to finds them by their hashes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

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

/// Chunks that lie on the other GPU.
pub(super) struct PreCopy {
    filler: Arc<Worker>,
    memory: CacheMemory,
    descriptor: OwnedFd,
    slots: Slots,
}

impl Migration<'_> {
    /// Copies what there is of a half, again and again as long as that makes less of it, at most so many times and so many
    /// bytes. What it comes to, if it was worth a try.
    pub(super) fn copy_rounds(
        &self,
        half: &Half,
        store: &Store,
        (most, budget): (u32, Option<u64>),
        rounds: &mut Vec<Round>,
    ) -> Result<Option<PreCopy>> {
        let Some(budget) = budget.filter(|_| most > 0) else { return Ok(None) };
        let mut pre_copy = None;
        for number in 1..=most {
            self.reply.check_wanted()?;
            let (round, is_useful) = self.round(half, store, (number, budget), &mut pre_copy)?;
            let before = rounds.last().map_or(u64::MAX, |last| last.bytes);
            rounds.push(round);
            fault::point("migrate-round")?;
            if !is_useful || round.bytes <= LITTLE || round.bytes > before / 2 {
                break;
            }
        }
        if let Some(pre_copy) = &pre_copy {
            let known = ask::Cache { memories: vec![pre_copy.memory], register: false };
            half.target.ask("take what was copied ahead", known, &[pre_copy.descriptor.as_fd()])?;
        }
        Ok(pre_copy)
    }

    /// How much can be filled for each half; none where the program would stand still while it is copied.
    pub(super) fn budgets(&self, there: &[Status]) -> Vec<Option<u64>> {
        let (needed, count) = (self.bytes(), self.halves.len() as u64);
        let free = |status: &Status| status.free_bytes.first().copied().unwrap_or_default();
        let all = self.halves.iter().map(|half| &half.status).zip(there).map(|(here, there)| {
            let total = here.devices.first().map_or(0, |device| device.total_memory);
            let shadow = needed + needed / 1024 + total / LEFT;
            let fillers = count * CONTEXT.min(total / LEFT);
            let budget = free(there).checked_sub(needed + fillers + plan::SPARE)?;
            // By what each has.
            let share = u128::from(budget) * u128::from(here.device_bytes) / u128::from(needed.max(1));
            let share = u64::try_from(share).unwrap_or_default();
            (free(here) >= shadow && share >= CACHE_SLOT).then_some(share)
        });
        all.collect()
    }

    fn round(
        &self,
        half: &Half,
        store: &Store,
        (number, budget): (u32, u64),
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
            .and_then(|()| gpu_half::drain(&half.source, saved_us, self.timeline))
            .inspect_err(|_| drop(gpu_half::give_up_drain(&half.source)))?;
        draft.adopt(parts.into_iter().chain(drained).collect())?;
        draft.manifest().gpus = machine::gpus(&half.status);
        let image = draft.commit()?;
        let chunks = chunks::of(&image);
        let bytes = new_in(&chunks, pre_copy.as_ref());
        let filled = self.timeline.time("fill ahead", || self.fill(&image, &chunks, budget, pre_copy));
        if let Err(error) = &filled {
            log::warn!("less is copied ahead for {:?}: {error}", self.sandbox.name());
            *pre_copy = None;
        }
        let round = Round { bytes, duration_us: began.elapsed().as_micros() as u64, stopped_us };
        Ok((round, filled.is_ok()))
    }

    fn fill(
        &self,
        image: &Image,
        chunks: &[Chunk<'_>],
        budget: u64,
        pre_copy: &mut Option<PreCopy>,
    ) -> Result<()> {
        let bytes = chunks::by_hash(chunks).len() as u64 * CACHE_SLOT;
        if bytes == 0 {
            return Ok(());
        }
        if pre_copy.is_none() {
            *pre_copy = Some(PreCopy::make(self, (bytes + LATER).min(budget))?);
        }
        pre_copy.as_mut().map_or(Ok(()), |pre_copy| pre_copy.take_in(image, chunks))
    }

    pub(super) fn image_name(&self, half: &Half, number: u32) -> String {
        format!("{}.{}.{number}", self.sandbox.id, half.target.number())
    }
}

/// Bytes of chunks that are not there yet.
pub(super) fn new_in(chunks: &[Chunk<'_>], pre_copy: Option<&PreCopy>) -> u64 {
    let is_new = |hash: &&ContentHash| !pre_copy.is_some_and(|pre_copy| pre_copy.slots.has(hash));
    chunks::by_hash(chunks).keys().filter(is_new).count() as u64 * CACHE_SLOT
}

impl PreCopy {
    fn make(of: &Migration<'_>, bytes: u64) -> Result<PreCopy> {
        let slots = bytes / CACHE_SLOT;
        let filler = of.daemon.pool.spares.start(of.gpu, Box::new(|_| ()))?;
        let number = of.sandbox.caches().next_number();
        let memory = CacheMemory { number, bytes: slots * CACHE_SLOT, device: Some(0) };
        let action = "make memory to copy ahead to";
        let made = filler.ask_whole(action, ask::MakeCacheMemory { memory }, &[], None);
        let descriptor = made.and_then(|((), descriptors)| {
            let reason = "it sent no descriptor".to_string();
            descriptors.into_iter().next().ok_or(WorkerError::Failed { action, reason }.into())
        });
        match descriptor {
            Ok(descriptor) => Ok(PreCopy { filler, memory, descriptor, slots: Slots::new(number, slots) }),
            Err(error) => {
                filler.kill();
                Err(error)
            }
        }
    }

    /// Fills what is new of an image's chunks.
    fn take_in(&mut self, image: &Image, chunks: &[Chunk<'_>]) -> Result<()> {
        let (places, into) = self.slots.place(chunks);
        let image = image.path().to_string_lossy().into_owned();
        let request = ask::FillCache { image, memory: self.memory, into, cached: Vec::new() };
        self.filler.ask("copy ahead", request, &[self.descriptor.as_fd()])?;
        self.slots.filled(places);
        Ok(())
    }

    /// Where chunks of this image lie.
    pub(super) fn rows(&self, chunks: &[Chunk<'_>]) -> Vec<Cached> {
        self.slots.rows(chunks)
    }
}

impl Drop for PreCopy {
    fn drop(&mut self) {
        let filler = self.filler.clone();
        std::thread::spawn(move || filler.kill());
    }
}
