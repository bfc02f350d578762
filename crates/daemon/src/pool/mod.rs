//! Workers whose contexts are ready, for the next sandboxes.
//!
//! Opening a GPU takes longer than most of a restore, so it is done before anyone asks. For each GPU that was used last
//! some workers wait; one that a sandbox takes is its own from then on and never comes back. The place of one that was
//! taken, or was killed, is filled in the background: for those taken when the sandbox runs ([`WorkerPool::refill`]),
//! since a driver that makes a context slows down what it does beside that. It makes one context after the other, so
//! that is how workers are started, and who finds none ready takes the one that is to be ready next.
//!
//! A worker that ends before it was ready is not replaced until the next sandbox asks, so that a GPU that cannot be
//! opened is not asked again and again. Waiting workers end with the daemon; whatever kills it closes their connection.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rekindle_protocol::daemon::Spare as Shown;
use rekindle_protocol::worker::Status;

use crate::caches::{Caches, Priority};
use crate::contexts::Contexts;
use crate::error::{Error, Result};
use crate::workers::{Address, OnEnd, Purpose, Spares, Start, Worker, WorkerError};

/// How many workers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// For each GPU, as `--gpu` names it.
    pub per_gpu: usize,
    /// For all GPUs together; those used last come first.
    pub most: usize,
}

pub struct WorkerPool {
    /// `rekindled` itself, which workers are made of.
    pub program: PathBuf,
    size: PoolSize,
    pub spares: Arc<Spares>,
    pub caches: Arc<Caches>,
    pub contexts: Arc<Contexts>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The one used last first.
    gpus: Vec<String>,
    waiting: Vec<Waiting>,
    closed: bool,
}

struct Waiting {
    gpu: String,
    worker: Arc<Worker>,
    ready: bool,
}

impl WorkerPool {
    /// An empty pool.
    pub fn new(
        program: PathBuf,
        size: PoolSize,
        spares: Arc<Spares>,
        caches: Arc<Caches>,
        contexts: Arc<Contexts>,
    ) -> Arc<WorkerPool> {
        Arc::new(WorkerPool { program, size, spares, caches, contexts, state: Mutex::default() })
    }

    /// A worker for a sandbox: this one, if it lives, else one that waits ready or is soon to, else a new one.
    pub fn worker(
        self: &Arc<WorkerPool>,
        gpu: &str,
        wanted: Option<Arc<Worker>>,
        address: Address,
        output: &Path,
        on_end: impl Fn() -> OnEnd,
    ) -> Result<Arc<Worker>> {
        self.note_use(gpu);
        let mut next = wanted.filter(|worker| worker.ended().is_none()).or_else(|| self.pick(gpu));
        while let Some(spare) = next {
            match spare.take(address.clone(), output, on_end()) {
                Ok(()) => return Ok(spare),
                Err(error) => {
                    log::warn!("a waiting worker could not be taken: {error}");
                    spare.shut_down();
                }
            }
            next = self.pick(gpu);
        }
        let (data, links) = (self.spares.data(), self.spares.links());
        let (program, purpose) = (&*self.program, Purpose::Program);
        Worker::start(&Start { program, address, gpu, output, purpose, data, links }, on_end())
    }

    /// A worker that has what it copies through ready before anybody takes it: one that waits, or a new one.
    pub fn spare(&self, gpu: &str) -> Result<Arc<Worker>> {
        self.pick(gpu).map_or_else(|| self.spares.start(gpu, Box::new(|_| ())), Ok)
    }

    /// Has workers wait for this GPU from now on.
    pub fn prepare(self: &Arc<WorkerPool>, gpu: &str) {
        self.note_use(gpu);
        self.refill();
    }

    /// Whether none is to wait for anything.
    pub fn is_off(&self) -> bool {
        self.size.per_gpu.min(self.size.most) == 0
    }

    /// Starts the first of the workers that are missing, ends those that are too many. The next one is started when that
    /// one is ready.
    pub fn refill(self: &Arc<WorkerPool>) {
        let (new, surplus) = {
            let mut state = self.lock();
            if state.closed {
                return;
            }
            let mut left = self.size.most;
            let mut begins = state.waiting.iter().all(|one| one.ready);
            let (mut kept, mut new) = (Vec::new(), None);
            for gpu in state.gpus.clone() {
                let wanted = self.size.per_gpu.min(left);
                left -= wanted;
                let found: Vec<Waiting> =
                    state.waiting.extract_if(.., |one| one.gpu == gpu).take(wanted).collect();
                let is_missing = found.len() < wanted;
                kept.extend(found);
                if is_missing && std::mem::take(&mut begins) {
                    match self.start(&gpu) {
                        Ok(worker) => {
                            new = Some(worker.clone());
                            kept.push(Waiting { gpu: gpu.clone(), worker, ready: false });
                        }
                        Err(error) => log::warn!("no worker waits for {gpu}: {error}"),
                    }
                }
            }
            (new, std::mem::replace(&mut state.waiting, kept))
        };
        for one in surplus {
            one.worker.shut_down();
        }
        if let Some(worker) = new {
            let pool = self.clone();
            std::thread::spawn(move || pool.get_ready(&worker));
        }
    }

    /// Puts an image into the caches, and has those that wait know what of them is memory of the host. Takes as long as
    /// that does.
    pub fn fill_caches(self: &Arc<WorkerPool>, image: &Path, gpu: &str, priority: Priority) {
        self.caches.fill_host(image, priority);
        let ready = |one: &Waiting| one.ready.then(|| one.worker.clone());
        let waiting: Vec<_> = self.lock().waiting.iter().filter_map(ready).collect();
        for worker in waiting {
            let pool = self.clone();
            std::thread::spawn(move || pool.acquaint(&worker));
        }
        if let Err(error) = self.caches.fill_gpu(image, gpu, priority) {
            log::warn!("an image is not cached whole: {error}");
        }
    }

    pub fn shown(&self) -> Vec<Shown> {
        let shown = |one: &Waiting| Shown {
            gpu: one.gpu.clone(),
            pid: one.worker.pid(),
            ready: one.ready && one.worker.ended().is_none(),
        };
        self.lock().waiting.iter().map(shown).collect()
    }

    /// Those that wait, with what each says of its GPU if it is ready and has nothing else to do.
    pub fn glance(&self) -> Vec<(Shown, Option<Status>)> {
        let workers: Vec<_> = self.lock().waiting.iter().map(|one| one.worker.clone()).collect();
        let status = |pid: i32| workers.iter().find(|worker| worker.pid() == pid)?.glance();
        let said =
            |one: Shown| (one.clone(), Some(one).filter(|one| one.ready).and_then(|one| status(one.pid)));
        self.shown().into_iter().map(said).collect()
    }

    /// Lets none wait any more. Those that do end with this process.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.spares.clear();
    }

    /// A GPU was used: it comes first.
    fn note_use(&self, gpu: &str) {
        let gpus = &mut self.lock().gpus;
        gpus.retain(|known| known != gpu);
        gpus.insert(0, gpu.to_string());
        gpus.truncate(self.size.most);
    }

    fn pick(&self, gpu: &str) -> Option<Arc<Worker>> {
        let waiting = &mut self.lock().waiting;
        let is_good = |one: &Waiting| one.worker.ended().is_none() && one.gpu == gpu;
        let ready = waiting.iter().position(|one| one.ready && is_good(one));
        let at = ready.or_else(|| waiting.iter().position(is_good))?;
        Some(waiting.remove(at).worker)
    }

    fn start(self: &Arc<WorkerPool>, gpu: &str) -> Result<Arc<Worker>> {
        let pool: Weak<WorkerPool> = Arc::downgrade(self);
        let on_end = move |worker: &Worker| {
            if let Some(pool) = pool.upgrade() {
                pool.lost(worker);
            }
        };
        self.spares.start(gpu, Box::new(on_end))
    }

    fn get_ready(self: &Arc<WorkerPool>, worker: &Arc<Worker>) {
        let ready = worker.status();
        let mut state = self.lock();
        let found = state.waiting.iter_mut().find(|one| Arc::ptr_eq(&one.worker, worker));
        match (ready, found) {
            (Ok(_), Some(one)) => {
                one.ready = true;
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

    /// Has it know the caches, for as long as it waits.
    fn acquaint(&self, worker: &Arc<Worker>) {
        let waits = || self.lock().waiting.iter().any(|one| Arc::ptr_eq(&one.worker, worker));
        match self.caches.acquaint(worker, waits) {
            Err(error) if waits() => log::warn!("a worker that waits does not know the caches: {error}"),
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
