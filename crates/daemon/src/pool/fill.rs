//! Starting and ending the workers that wait, so that there are as many as there are to be.
//!
//! They are started in the background: when nobody [loads](super::loads), and one after the other, as a driver makes
//! contexts.
//!
//! A worker that ends before it was ready is not replaced until the next sandbox asks, so that a GPU that cannot be
//! opened is not asked again and again.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::PoolTarget;

use super::returned::Former;
use super::room::{Pressure, Sight};
use super::size::{Reasons, share_out};
use super::{Gpu, State, Waiting, WorkerPool};
use crate::error::{Error, Result};
use crate::host::gpu::have_in_common;
use crate::workers::{OnEnd, Worker, WorkerError};

/// How often it is looked whether there is memory for more, and still is for those there are.
const LOOK: Duration = Duration::from_secs(5);

impl WorkerPool {
    /// Starts the first of the workers that are missing, ends those that are too many. The next one is started when that
    /// one is ready.
    pub fn refill(self: &Arc<WorkerPool>) {
        self.settle(true);
    }

    /// As [`WorkerPool::refill`], or ends some alone.
    pub(super) fn settle(self: &Arc<WorkerPool>, may_start: bool) {
        let settling = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let sights = self.look_at_memory(now);
        let (new, surplus) = {
            let mut state = self.lock();
            if state.closed {
                return;
            }
            let State { gpus, waiting, holds, loads, .. } = &mut *state;
            let reasons: Vec<Reasons> = gpus.iter_mut().map(|gpu| gpu.reasons(&self.size, now)).collect();
            let shares = share_out(&reasons, self.size.most);
            let put_off = loads.put_off(now);
            let mut begins = may_start && put_off.is_none() && waiting.iter().all(|one| one.ready);
            let (mut kept, mut new, mut looks_again) = (Vec::new(), None, false);
            for (gpu, (wanted, reasons)) in gpus.iter_mut().zip(shares.into_iter().zip(reasons)) {
                let is_new = |one: &Waiting| one.gpu == gpu.name && one.former.is_none();
                let have = waiting.iter().filter(|one| is_new(one)).count();
                let memory = sights.get(&gpu.name).copied().unwrap_or(Sight::Unclear);
                let is_held = holds.iter().any(|held| have_in_common(held, &gpu.name));
                gpu.gave_up &= is_held || !memory.is_ample();
                let pressure = Pressure { memory, gave_up: gpu.gave_up, is_held };
                let allowed = pressure.allows(wanted, have, reasons.least);
                gpu.is_short = allowed < wanted;
                looks_again |= gpu.is_short || have > reasons.least;
                let found: Vec<Waiting> = waiting.extract_if(.., |one| is_new(one)).take(allowed).collect();
                let stays = |one: &Waiting| {
                    one.gpu == gpu.name
                        && !gpu.gave_up
                        && one.former.as_ref().is_some_and(|former| former.until() > now)
                };
                kept.extend(waiting.extract_if(.., |one| stays(one)));
                let is_missing = found.len() < allowed;
                if !is_missing && found.iter().all(|one| one.ready) {
                    gpu.demand.is_whole();
                }
                kept.extend(found);
                if is_missing && std::mem::take(&mut begins) {
                    match self.start(&gpu.name) {
                        Ok(worker) => {
                            new = Some(worker.clone());
                            kept.push(Waiting { gpu: gpu.name.clone(), worker, ready: false, former: None });
                        }
                        Err(error) => log::warn!("no worker waits for {}: {error}", gpu.name),
                    }
                }
            }
            let changes = gpus.iter().filter_map(|gpu| gpu.demand.next_change(self.size.window));
            let returned = kept.iter().filter_map(|one| one.former.as_ref()).map(Former::until);
            let next = changes.chain(looks_again.then(|| now + LOOK)).chain(put_off).chain(returned).min();
            let surplus = std::mem::replace(waiting, kept);
            self.settle_at(&mut state, next);
            (new, surplus)
        };
        drop(settling);
        for one in surplus {
            one.worker.shut_down();
        }
        if let Some(worker) = new {
            let pool = self.clone();
            std::thread::spawn(move || pool.get_ready(&worker));
        }
    }

    /// How much is free of the GPUs for whose workers that decides.
    fn look_at_memory(&self, now: Instant) -> HashMap<String, Sight> {
        let gpus: Vec<String> = {
            let mut state = self.lock();
            let decides = |gpu: &mut Gpu| {
                let Reasons { least, recent, asleep, processes } = gpu.reasons(&self.size, now);
                (gpu.gave_up || recent.max(asleep).max(processes) > least).then(|| gpu.name.clone())
            };
            state.gpus.iter_mut().filter_map(decides).collect()
        };
        gpus.into_iter().map(|gpu| (gpu.clone(), self.look(&gpu))).collect()
    }

    /// Has it looked then whether all is as it is to be, or earlier.
    pub(super) fn settle_at(self: &Arc<WorkerPool>, state: &mut State, at: Option<Instant>) {
        let Some(at) = at.filter(|at| state.next.is_none_or(|next| *at < next)) else { return };
        state.next = Some(at);
        let pool = Arc::downgrade(self);
        std::thread::spawn(move || {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            let Some(pool) = pool.upgrade() else { return };
            // Another one looks earlier, or has.
            if pool.lock().next.take_if(|next| *next == at).is_some() {
                pool.refill();
            }
        });
    }

    /// How many are to wait for each GPU, and why.
    pub fn targets(&self) -> Vec<PoolTarget> {
        let now = Instant::now();
        let mut state = self.lock();
        let reasons: Vec<Reasons> = state.gpus.iter_mut().map(|gpu| gpu.reasons(&self.size, now)).collect();
        let shares = share_out(&reasons, self.size.most);
        let target = |(gpu, (workers, reasons)): (&Gpu, (usize, Reasons))| PoolTarget {
            gpu: gpu.name.clone(),
            workers,
            least: reasons.least,
            recent: reasons.recent,
            asleep: reasons.asleep,
            processes: reasons.processes,
            short_of_memory: gpu.is_short,
        };
        state.gpus.iter().zip(shares.into_iter().zip(reasons)).map(target).collect()
    }

    fn start(self: &Arc<WorkerPool>, gpu: &str) -> Result<Arc<Worker>> {
        self.spares.start(gpu, self.on_end())
    }

    /// What is done when one ends that waits.
    pub(super) fn on_end(self: &Arc<WorkerPool>) -> OnEnd {
        let pool: Weak<WorkerPool> = Arc::downgrade(self);
        Box::new(move |worker: &Worker| {
            if let Some(pool) = pool.upgrade() {
                pool.lost(worker);
            }
        })
    }

    fn get_ready(self: &Arc<WorkerPool>, worker: &Arc<Worker>) {
        let ready = worker.status();
        let mut state = self.lock();
        let found = state.waiting.iter_mut().find(|one| Arc::ptr_eq(&one.worker, worker));
        match (ready, found) {
            (Ok(_), Some(one)) => {
                one.ready = true;
                let gpu = one.gpu.clone();
                let known = state.gpus.iter_mut().filter(|known| known.name == gpu);
                known.for_each(|known| known.demand.replaced());
                drop(state);
                self.refill();
                self.acquaint(worker);
            }
            (Err(Error::Workers(WorkerError::Ended { how, .. })), _) => {
                log::warn!("a worker that was to wait ended: {how}")
            }
            (Err(error), Some(_)) => {
                log::warn!("a worker that was to wait did not get ready: {error}");
                drop(state);
                worker.shut_down();
            }
            _ => {}
        }
    }

    /// A worker has ended while it waited.
    fn lost(self: &Arc<WorkerPool>, worker: &Worker) {
        let lost = {
            let waiting = &mut self.lock().waiting;
            let at = waiting.iter().position(|one| std::ptr::eq(&*one.worker, worker));
            at.map(|at| waiting.remove(at))
        };
        if lost.is_some_and(|one| one.ready) {
            self.refill();
        }
    }
}
