//! Workers whose contexts are ready, for the next sandboxes.
//!
//! Opening a GPU takes longer than most of a restore, so it is done before anyone asks. For each GPU that was used last
//! some workers wait: as many as [were taken at once](demand) of late, or as there are programs asleep for which a context
//! is kept, as far as there is [memory](room). One that a sandbox takes is its own from then on; when its
//! program has ended it may [come back](returned). Its place is [filled](fill) once the sandbox runs and nobody [loads](loads). Who finds none ready takes the one that is to be
//! ready next.
//!
//! Waiting workers end with the daemon; whatever kills it closes their connection.

mod demand;
mod fill;
mod loads;
mod returned;
mod room;
mod size;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::Spare as Shown;
use rekindle_protocol::worker::Status;

use crate::caches::{Caches, Priority};
use crate::contexts::Contexts;
use crate::error::Result;
use crate::workers::{Address, OnEnd, Purpose, Spares, Start, Worker};
use demand::{Demand, Peaks};
use loads::Loads;
use returned::Former;
use size::Reasons;

pub use loads::Load;
pub use returned::Owner;
pub use room::HeldRoom;
pub use size::PoolSize;

/// For so long it is remembered how many processes an image has.
pub const IMAGES: Duration = Duration::from_secs(24 * 60 * 60);

pub struct WorkerPool {
    /// `rekindled` itself, which workers are made of.
    pub program: PathBuf,
    size: PoolSize,
    pub spares: Arc<Spares>,
    pub caches: Arc<Caches>,
    pub contexts: Arc<Contexts>,
    state: Mutex<State>,
    /// Held by who starts and ends workers.
    settling: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The one used last first.
    gpus: Vec<Gpu>,
    waiting: Vec<Waiting>,
    /// Workers that sandboxes have taken, and GPUs of all.
    given: Vec<(String, Weak<Worker>)>,
    /// Those that wait for one program each, beside the pool.
    wakers: Vec<(String, Weak<Worker>)>,
    /// GPUs whose memory programs are about to take that lacked it.
    holds: Vec<String>,
    loads: Loads,
    /// When it is looked next whether all is as it is to be.
    next: Option<Instant>,
    closed: bool,
}

/// A GPU that workers wait for.
struct Gpu {
    name: String,
    demand: Demand,
    /// Processes of images that were made or restored, each of which takes a worker.
    processes: Peaks,
    /// Who sleeps that contexts are kept for, and how many.
    kept: BTreeMap<String, usize>,
    /// Some that waited went for a program that lacked memory, and much has not been free since.
    gave_up: bool,
    /// Fewer wait than are to.
    is_short: bool,
}

impl Gpu {
    fn new(name: &str) -> Gpu {
        let (demand, processes, kept) = (Demand::default(), Peaks::default(), BTreeMap::new());
        Gpu { name: name.to_string(), demand, processes, kept, gave_up: false, is_short: false }
    }

    fn reasons(&mut self, size: &PoolSize, now: Instant) -> Reasons {
        match size.per_gpu {
            0 => Reasons::default(),
            least => Reasons {
                least,
                recent: self.demand.recent(now, size.window),
                asleep: self.kept.values().sum(),
                processes: self.processes.most(now, IMAGES),
            },
        }
    }
}

struct Waiting {
    gpu: String,
    worker: Arc<Worker>,
    ready: bool,
    /// Whom it has served, if it has.
    former: Option<Former>,
}

/// For whom a worker is taken.
pub struct Taker {
    pub owner: Owner,
    /// It gets along with a worker that has served its owner before.
    pub shares_past: bool,
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
        let (state, settling) = (Mutex::default(), Mutex::default());
        Arc::new(WorkerPool { program, size, spares, caches, contexts, state, settling })
    }

    /// A worker for a sandbox: this one, if it lives, else one that waits ready or is soon to, else a new one. It comes back
    /// when its program has ended, if it can.
    pub fn worker(
        self: &Arc<WorkerPool>,
        gpu: &str,
        (wanted, taker): (Option<Arc<Worker>>, Taker),
        address: Address,
        output: &Path,
        on_end: impl Fn() -> OnEnd,
    ) -> Result<Arc<Worker>> {
        self.note_use(gpu);
        let may_return = |taken: Arc<Worker>| {
            self.expect_back(&taken, gpu, taker.owner.clone());
            self.note_given(gpu, taken)
        };
        let wanted = wanted.filter(|worker| worker.ended().is_none());
        let mut next = wanted.or_else(|| self.take(gpu, taker.shares_past.then_some(&taker.owner)));
        while let Some(spare) = next {
            match spare.take(address.clone(), output, on_end()) {
                Ok(()) => return Ok(may_return(spare)),
                Err(error) => {
                    log::warn!("a waiting worker could not be taken: {error}");
                    spare.shut_down();
                }
            }
            next = self.pick(gpu);
        }
        let (data, links) = (self.spares.data(), self.spares.links());
        let (program, purpose) = (&*self.program, Purpose::Program);
        let start = Start { program, address, gpu, output, purpose, data, links };
        Worker::start(&start, on_end()).map(may_return)
    }

    /// A worker that has what it copies through ready before anybody takes it: one that waits, or a new one.
    pub fn spare(&self, gpu: &str) -> Result<Arc<Worker>> {
        self.take(gpu, None).map_or_else(|| self.spares.start(gpu, Box::new(|_| ())), Ok)
    }

    /// Has workers wait for this GPU from now on.
    pub fn prepare(self: &Arc<WorkerPool>, gpu: &str) {
        self.note_use(gpu);
        self.refill();
    }

    /// An image that was made or restored on this GPU has so many processes that use it.
    pub fn note_image(&self, gpu: &str, processes: usize) {
        let now = Instant::now();
        let gpus = &mut self.lock().gpus;
        gpus.iter_mut().filter(|one| one.name == gpu).for_each(|gpu| gpu.processes.note(now, processes));
    }

    /// Whether none is to wait for anything.
    pub fn is_off(&self) -> bool {
        self.size.per_gpu.min(self.size.most) == 0
    }

    /// A program sleeps, by this name, and is to find so many contexts on this GPU when it wakes.
    pub fn keep_contexts(self: &Arc<WorkerPool>, who: &str, (gpu, count): (&str, usize)) {
        if self.is_off() {
            return;
        }
        self.note_use(gpu);
        if let Some(known) = self.lock().gpus.iter_mut().find(|known| known.name == gpu) {
            known.kept.insert(who.to_string(), count);
        }
        let pool = self.clone();
        std::thread::spawn(move || pool.refill());
    }

    /// None are kept for it any more. Nothing is started beside its work.
    pub fn let_contexts_go(self: &Arc<WorkerPool>, who: &str) {
        for gpu in &mut self.lock().gpus {
            gpu.kept.remove(who);
        }
        let pool = self.clone();
        std::thread::spawn(move || pool.settle(false));
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
            returned: one.former.is_some(),
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
        let known = gpus.iter().position(|known| known.name == gpu).map(|at| gpus.remove(at));
        gpus.insert(0, known.unwrap_or_else(|| Gpu::new(gpu)));
        gpus.truncate(self.size.most);
    }

    fn note_given(&self, gpu: &str, worker: Arc<Worker>) -> Arc<Worker> {
        let given = &mut self.lock().given;
        given.retain(|(_, worker)| room::is_there(worker));
        given.push((gpu.to_string(), Arc::downgrade(&worker)));
        worker
    }

    /// One that waits, if one does: first of all one that has served this owner before. It counts what is taken, whether there
    /// was one or not.
    fn take(&self, gpu: &str, owner: Option<&Owner>) -> Option<Arc<Worker>> {
        let now = Instant::now();
        self.lock().gpus.iter_mut().filter(|one| one.name == gpu).for_each(|gpu| gpu.demand.took(now));
        owner.and_then(|owner| self.pick_returned(gpu, owner)).or_else(|| self.pick(gpu))
    }

    fn pick(&self, gpu: &str) -> Option<Arc<Worker>> {
        let waiting = &mut self.lock().waiting;
        let is_good = |one: &Waiting| one.worker.ended().is_none() && one.gpu == gpu && one.former.is_none();
        let ready = waiting.iter().position(|one| one.ready && is_good(one));
        let at = ready.or_else(|| waiting.iter().position(is_good))?;
        Some(waiting.remove(at).worker)
    }

    /// One that has served this owner before, the last one first.
    fn pick_returned(&self, gpu: &str, owner: &Owner) -> Option<Arc<Worker>> {
        let waiting = &mut self.lock().waiting;
        let is_his = |one: &Waiting| one.former.as_ref().is_some_and(|former| former.is_of(owner));
        let is_good = |one: &Waiting| one.worker.ended().is_none() && one.gpu == gpu && is_his(one);
        Some(waiting.remove(waiting.iter().rposition(is_good)?).worker)
    }

    /// Has it know the caches, for as long as it waits.
    fn acquaint(&self, worker: &Arc<Worker>) {
        let waits = || self.lock().waiting.iter().any(|one| Arc::ptr_eq(&one.worker, worker));
        match self.caches.acquaint(worker, waits) {
            Err(error) if waits() => log::warn!("a worker that waits does not know the caches: {error}"),
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
