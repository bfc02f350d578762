//! The workers of a sandbox: taking them, finding them again, noting whom they serve; and what it wants of those that wait.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError, Weak};

use rekindle_device::Slice;
use rekindle_protocol::worker::{ContextLost, socket_number};
use rekindle_sandbox::ending;

use super::Sandbox;
use crate::caches::Priority;
use crate::contexts::Share;
use crate::error::Result;
use crate::fault;
use crate::host::process::is_alive;
use crate::pool::{Taker, WorkerPool};
use crate::sandboxes::SandboxError;
use crate::sandboxes::record::{Record, WorkerRecord};
use crate::workers::{Address, OnEnd, OnLoss, Worker};

/// What is done for a sandbox when the context has failed that its program shares, by the worker that served it there.
type Outlive = fn(Arc<Sandbox>, Arc<Worker>, ContextLost);
static OUTLIVE: OnceLock<Outlive> = OnceLock::new();

/// Has this done, from now on, when shared contexts fail. A daemon is a process, and does one thing then.
pub fn when_contexts_fail(outlive: Outlive) {
    OUTLIVE.get_or_init(|| outlive);
}

/// Those of a sandbox. Once its program has ended there are no more, for they would be left behind with what they make.
#[derive(Default)]
pub(super) struct Workers {
    all: Vec<Arc<Worker>>,
    closed: bool,
}

impl Workers {
    /// All that there are, after which there come none.
    pub(super) fn close(&mut self) -> Vec<Arc<Worker>> {
        self.closed = true;
        std::mem::take(&mut self.all)
    }
}

/// Which worker a sandbox takes.
#[derive(Default)]
pub struct WorkerTake {
    /// This one, if it lives.
    pub wanted: Option<Arc<Worker>>,
    /// Its process keeps to these addresses, whether it shares contexts now or not.
    pub slice: Option<Slice>,
    /// It may be one that has served a program before: nothing that the program knows depends on what was loaded in its context.
    pub shares_past: bool,
}

impl Sandbox {
    /// The workers that have not ended.
    pub fn live_workers(&self) -> Vec<Arc<Worker>> {
        self.workers().all.iter().filter(|worker| worker.ended().is_none()).cloned().collect()
    }

    /// The worker of this number, if there is one.
    pub(super) fn worker(&self, number: u32) -> Option<Arc<Worker>> {
        self.workers().all.iter().find(|held| held.number() == number).cloned()
    }

    /// The last worker that served `client`, if it is dead and the client is not.
    pub fn lost_worker(&self) -> Option<Arc<Worker>> {
        let is_lost = |worker: &&Arc<Worker>| {
            worker.ended().is_some() && worker.is_settled() && is_alive(worker.client())
        };
        self.workers().all.iter().find(is_lost).cloned()
    }

    /// The workers of all processes that use the GPU, each of which has one of its own.
    pub fn serving_workers(&self) -> Result<Vec<Arc<Worker>>> {
        if let Some(lost) = self.lost_worker() {
            return Err(SandboxError::WorkerDead {
                name: self.name(),
                how: lost.ended().unwrap_or_default(),
            }
            .into());
        }
        let mut serving = self.live_workers();
        serving.retain(|worker| is_alive(worker.client()));
        Ok(serving)
    }

    /// Ends a worker that is not needed any more.
    pub fn end_worker(&self, worker: &Worker) {
        self.give_up_worker(worker);
        worker.shut_down();
    }

    /// A worker is not this sandbox's any more, and its end nobody's loss.
    pub fn give_up_worker(&self, worker: &Worker) {
        self.workers().all.retain(|held| held.number() != worker.number());
        worker.set_client(0);
    }

    /// Takes a further worker, which may not be ready yet. [`Sandbox::fill_pool`] is to follow.
    pub fn start_worker(self: &Arc<Sandbox>) -> Result<Arc<Worker>> {
        self.take_worker(None).inspect(|_| self.note_workers())
    }

    /// As [`Sandbox::start_worker`], for a caller that is to [note](Sandbox::note_workers) it beside other work: a file system
    /// may take longer to replace a record than all else. It is the `wanted` one, if that lives.
    pub fn take_worker(self: &Arc<Sandbox>, wanted: Option<Arc<Worker>>) -> Result<Arc<Worker>> {
        self.take_worker_on(&self.record().gpu, WorkerTake { wanted, ..WorkerTake::default() })
    }

    /// As [`Sandbox::take_worker`], of a process that keeps to these addresses, whether it shares contexts now or not.
    pub fn take_worker_at(self: &Arc<Sandbox>, slice: Option<Slice>) -> Result<Arc<Worker>> {
        self.take_worker_on(&self.record().gpu, WorkerTake { slice, ..WorkerTake::default() })
    }

    /// As [`Sandbox::take_worker`] and [`Sandbox::take_worker_at`], on this GPU.
    pub fn take_worker_on(
        self: &Arc<Sandbox>,
        gpu: &str,
        WorkerTake { wanted, slice, shares_past }: WorkerTake,
    ) -> Result<Arc<Worker>> {
        let mut workers = self.workers();
        if workers.closed {
            return Err(
                SandboxError::EndedMeanwhile { name: self.name(), wanted: "given a GPU worker" }.into()
            );
        }
        let used = workers.all.iter().map(|worker| worker.number()).max().unwrap_or(0);
        let mut number = self.last_number.load(Ordering::Relaxed).max(used) + 1;
        // One that is ending, of an earlier daemon too, still has its place.
        while self.worker_address(number).socket.exists() {
            number += 1;
        }
        self.last_number.store(number, Ordering::Relaxed);
        let share = self.record().share();
        let address = self.worker_address(number);
        let worker = match share {
            Some(share) => {
                let own = workers.all.iter().filter(|worker| worker.ended().is_none());
                let slices = match slice {
                    Some(slice) => vec![slice],
                    None => free_slices(&share.slices, own.filter_map(|worker| worker.slice()).collect()),
                };
                let share = Share { slices, ..share };
                self.pool.contexts.admit(gpu, &share, address, || self.on_shared_worker())?
            }
            None => {
                let taker = Taker { owner: self.record().service_tenant.clone(), shares_past };
                self.pool.worker(gpu, (wanted, taker), address, &self.log, || self.on_worker_end())?
            }
        };
        worker.set_owner(self.record().owner(), gpu);
        slice.into_iter().for_each(|slice| worker.set_slice(slice));
        workers.all.push(worker.clone());
        drop(workers);
        fault::pass("worker-taken");
        Ok(worker)
    }

    /// Finds the workers of an earlier daemon again; those that are gone are told of. One that it took and had not noted yet, and
    /// that serves nobody, is ended.
    pub fn reconnect_workers(self: &Arc<Sandbox>) {
        fault::pass("workers-sought");
        let Record { workers, tenant, .. } = self.record();
        for WorkerRecord { number, client, slice } in workers {
            let address = self.worker_address(number);
            let found = match tenant {
                Some(_) => Worker::reconnect_to_client(address, client, self.on_shared_worker()),
                None => Worker::reconnect(address, client, self.on_worker_end()),
            };
            match found {
                Ok(worker) => {
                    slice.into_iter().for_each(|slice| worker.set_slice(slice));
                    self.workers().all.push(worker);
                }
                Err(error) if is_alive(client) => {
                    self.report_problem(format!(
                        "its GPU worker died while no daemon ran ({error}); its GPU memory is lost"
                    ));
                }
                Err(_) => {}
            }
        }
        self.end_unknown_workers();
        self.note_workers();
    }

    fn end_unknown_workers(self: &Arc<Sandbox>) {
        let known: Vec<u32> = self.workers().all.iter().map(|worker| worker.number()).collect();
        for number in worker_numbers(&self.run_directory).filter(|number| !known.contains(number)) {
            let (address, on_end): (_, OnEnd) = (self.worker_address(number), Box::new(|_| ()));
            let found = match self.record().tenant {
                Some(_) => Worker::reconnect_to_client(address, 0, (on_end, Box::new(|_, _| ()))),
                None => Worker::reconnect(address, 0, on_end),
            };
            let serves = |worker: &Worker| worker.status().map(|status| status.client != 0);
            match found.and_then(|worker| Ok((serves(&worker)?, worker))) {
                Ok((false, worker)) => {
                    log::info!(
                        "{:?}: a worker that an earlier daemon had begun to take is ended",
                        self.name()
                    );
                    worker.shut_down();
                }
                Ok((true, _)) => log::warn!("{:?}: worker {number} is not in the record", self.name()),
                Err(error) => log::debug!("{error}"),
            }
        }
    }

    /// Writes down which workers there are and whom they serve.
    pub fn note_workers(&self) {
        self.note_with_workers(|_| {});
    }

    /// As [`Sandbox::note_workers`], with a change that the next daemon is to find together with that.
    pub fn note_with_workers(&self, change: impl FnOnce(&mut Record)) {
        let workers = self
            .live_workers()
            .iter()
            .map(|worker| WorkerRecord {
                number: worker.number(),
                client: worker.client(),
                slice: worker.slice(),
            })
            .collect();
        self.note(|record| {
            record.workers = workers;
            change(record);
        });
    }

    fn worker_address(&self, number: u32) -> Address {
        let log = self.logs.join(format!("{}.worker-{number}.log", self.id));
        Address::in_sandbox(&self.run_directory, number, log)
    }

    /// An image that was made of it, or that it is restored from, has so many processes that use the GPU. Those that share
    /// contexts take no worker each.
    pub fn note_image(&self, processes: usize) {
        let record = self.record();
        if record.share().is_none() {
            self.pool.note_image(&record.gpu, processes);
        }
    }

    /// Has the next worker made ready once nobody loads.
    pub fn fill_pool(&self) {
        self.pool.refill();
    }

    /// Puts an image into the caches of this sandbox's GPU, which takes as long as that does.
    pub fn fill_caches(&self, image: &Path, priority: Priority) {
        self.pool.fill_caches(image, &self.record().gpu, priority);
    }

    /// Nobody follows a worker any more: from now on its end is told of, if that is still to come or not.
    pub fn leave_alone(self: &Arc<Sandbox>, worker: &Worker) {
        worker.set_followed(false);
        if worker.ended().is_some() {
            self.told_of_worker_end()(worker);
        }
        self.see_to_mending();
    }

    /// Whether the process that a worker served has ended or is about to, so that the worker's end is no loss.
    pub fn has_lost_client(&self, worker: &Worker) -> bool {
        let client = worker.client();
        !self.is_live() || !is_alive(client) || ending::is_dying(client)
    }

    fn on_shared_worker(self: &Arc<Sandbox>) -> (OnEnd, OnLoss) {
        let sandbox: Weak<Sandbox> = Arc::downgrade(self);
        let on_loss = move |worker: &Arc<Worker>, lost| {
            if let (Some(sandbox), Some(outlive)) = (sandbox.upgrade(), OUTLIVE.get()) {
                let worker = worker.clone();
                std::thread::spawn(move || outlive(sandbox, worker, lost));
            }
        };
        (self.on_worker_end(), Box::new(on_loss))
    }

    /// A worker that ends leaves memory, in which one may wait that had none.
    fn on_worker_end(self: &Arc<Sandbox>) -> OnEnd {
        let (pool, told) = (Arc::downgrade(&self.pool), self.told_of_worker_end());
        Box::new(move |worker| {
            told(worker);
            pool.upgrade().iter().for_each(WorkerPool::refill);
        })
    }

    /// What the end of a worker means for its program.
    fn told_of_worker_end(self: &Arc<Sandbox>) -> OnEnd {
        let sandbox: Weak<Sandbox> = Arc::downgrade(self);
        Box::new(move |worker| {
            if worker.is_followed() || !worker.is_settled() {
                return;
            }
            let client = worker.client();
            if is_alive(client)
                && sandbox.upgrade().is_some_and(|sandbox| sandbox.is_live() && sandbox.replaces(worker))
            {
                return;
            }
            // Who is brought back anyhow does not meet the loss.
            let is_urgent = !worker.ended_well()
                && !ending::is_dying(client)
                && sandbox.upgrade().is_some_and(|sandbox| sandbox.is_brought_back());
            // It may be on its way out too.
            let is_left = is_urgent || !ending::ends_soon(client, || !is_alive(client));
            let Some(sandbox) = sandbox.upgrade() else { return };
            if is_left && sandbox.is_live() {
                let how = worker.ended().unwrap_or_default();
                sandbox.report_problem(format!("its GPU worker died ({how}); its GPU memory is lost"));
                sandbox.end_if_brought_back();
            }
        })
    }

    pub(super) fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of those whose sockets are in a sandbox's run directory.
fn worker_numbers(run_directory: &Path) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(run_directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| socket_number(entry.file_name().to_str()?))
}

/// Which addresses a further process of a program may have, so that it finds room in the contexts of the others: the
/// program's own, if none of its processes has those, else any that none of them has, from there on.
fn free_slices(wanted: &[Slice], taken: Vec<Slice>) -> Vec<Slice> {
    let Some(first) = wanted.first().filter(|first| taken.contains(first)) else { return wanted.to_vec() };
    let later = Slice::all().skip_while(|slice| slice != first);
    later
        .chain(Slice::all().take_while(|slice| slice != first))
        .filter(|slice| !taken.contains(slice))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_process_has_other_addresses_than_those_before() {
        let all: Vec<Slice> = Slice::all().collect();
        let last = all.len() - 1;
        assert_eq!(free_slices(&[all[3]], vec![]), [all[3]]);
        assert_eq!(free_slices(&[all[3]], vec![all[3], all[4]])[..2], [all[5], all[6]]);
        assert_eq!(free_slices(&[all[last]], vec![all[last]])[0], all[0]);
        assert_eq!(free_slices(&[all[3]], all.clone()), []);
    }
}
