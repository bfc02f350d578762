//! Workers whose contexts are ready, for the next sandboxes.
//!
//! Opening a GPU takes longer than most of a restore, so it is done before anyone asks. For each GPU that was used last
//! some workers wait; one that a sandbox takes is its own from then on and never comes back. The place of one that was
//! taken, or was killed, is filled in the background: for those taken when the sandbox runs ([`WorkerPool::refill`]),
//! since a driver that makes a context slows down what it does beside that.
//!
//! A worker that ends before it was ready is not replaced until the next sandbox asks, so that a GPU that cannot be
//! opened is not asked again and again. Waiting workers end with the daemon; whatever kills it closes their connection.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rekindle_protocol::daemon::Spare as Shown;

use crate::error::{Error, Result};
use crate::places::Places;
use crate::run::new_id;
use crate::worker::{OnEnd, Place, Start, Worker};

/// How logs of waiting workers begin.
const LOG_STEM: &str = "pool-";

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
    directory: PathBuf,
    logs: PathBuf,
    size: PoolSize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The one used last first.
    gpus: Vec<String>,
    spares: Vec<Spare>,
    closed: bool,
}

struct Spare {
    gpu: String,
    worker: Arc<Worker>,
    ready: bool,
}

impl WorkerPool {
    /// An empty pool. Clears away what a daemon that was killed has left.
    pub fn open(places: &Places, program: PathBuf, size: PoolSize) -> Arc<WorkerPool> {
        let pool = WorkerPool {
            program,
            directory: places.pool(),
            logs: places.logs(),
            size,
            state: Mutex::default(),
        };
        pool.clear();
        Arc::new(pool)
    }

    /// A worker for a sandbox: one that waits ready, else a new one.
    pub fn worker(
        self: &Arc<WorkerPool>,
        gpu: &str,
        place: Place,
        output: &Path,
        on_end: impl Fn() -> OnEnd,
    ) -> Result<Arc<Worker>> {
        self.note_use(gpu);
        while let Some(spare) = self.pick(gpu) {
            match spare.take(place.clone(), output, on_end()) {
                Ok(()) => return Ok(spare),
                Err(error) => {
                    log::warn!("a waiting worker could not be taken: {error}");
                    spare.shut_down();
                }
            }
        }
        Worker::start(&Start { program: &self.program, place, gpu, output, spare: false }, on_end())
    }

    /// Has workers wait for this GPU from now on.
    pub fn prepare(self: &Arc<WorkerPool>, gpu: &str) {
        self.note_use(gpu);
        self.refill();
    }

    /// Starts the workers that are missing, ends those that are too many.
    pub fn refill(self: &Arc<WorkerPool>) {
        let (new, surplus) = {
            let mut state = self.lock();
            if state.closed {
                return;
            }
            let mut left = self.size.most;
            let (mut missing, mut kept) = (Vec::new(), Vec::new());
            for gpu in state.gpus.clone() {
                let wanted = self.size.per_gpu.min(left);
                left -= wanted;
                let found: Vec<Spare> =
                    state.spares.extract_if(.., |spare| spare.gpu == gpu).take(wanted).collect();
                missing.extend((found.len()..wanted).map(|_| gpu.clone()));
                kept.extend(found);
            }
            let surplus = std::mem::replace(&mut state.spares, kept);
            let mut new = Vec::new();
            for gpu in missing {
                match self.start(&gpu) {
                    Ok(worker) => {
                        new.push(worker.clone());
                        state.spares.push(Spare { gpu, worker, ready: false });
                    }
                    Err(error) => log::warn!("no worker waits for {gpu}: {error}"),
                }
            }
            (new, surplus)
        };
        for spare in surplus {
            self.end(&spare.worker);
        }
        for worker in new {
            let pool = self.clone();
            std::thread::spawn(move || pool.wait_ready(&worker));
        }
    }

    pub fn shown(&self) -> Vec<Shown> {
        let shown =
            |spare: &Spare| Shown { gpu: spare.gpu.clone(), pid: spare.worker.pid(), ready: spare.ready };
        self.lock().spares.iter().map(shown).collect()
    }

    /// Ends all that wait, and lets none wait any more.
    pub fn close(&self) {
        let spares = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.spares)
        };
        for spare in &spares {
            self.end(&spare.worker);
        }
        self.clear();
    }

    fn note_use(&self, gpu: &str) {
        let mut state = self.lock();
        state.gpus.retain(|known| known != gpu);
        state.gpus.insert(0, gpu.to_string());
        state.gpus.truncate(self.size.most);
    }

    fn pick(&self, gpu: &str) -> Option<Arc<Worker>> {
        let mut state = self.lock();
        let fits = |spare: &Spare| spare.ready && spare.gpu == gpu && spare.worker.ended().is_none();
        let at = state.spares.iter().position(fits)?;
        Some(state.spares.remove(at).worker)
    }

    fn start(self: &Arc<WorkerPool>, gpu: &str) -> Result<Arc<Worker>> {
        crate::places::private_directory(&self.directory, true)?;
        let id = new_id()?;
        let log = self.logs.join(format!("{LOG_STEM}{id}.log"));
        let place = Place { number: 0, socket: self.directory.join(format!("{id}.sock")), log };
        let start = Start { program: &self.program, place, gpu, output: Path::new("/dev/null"), spare: true };
        let pool: Weak<WorkerPool> = Arc::downgrade(self);
        let on_end: OnEnd = Box::new(move |worker| {
            if let Some(pool) = pool.upgrade() {
                pool.lost(worker);
            }
        });
        Worker::start(&start, on_end)
    }

    fn wait_ready(&self, worker: &Arc<Worker>) {
        let status = worker.status();
        let mut state = self.lock();
        let found = state.spares.iter_mut().find(|spare| Arc::ptr_eq(&spare.worker, worker));
        match (status, found) {
            (Ok(_), Some(spare)) => spare.ready = true,
            (Err(Error::WorkerEnded { how, .. }), _) => log::warn!("a worker that was to wait ended: {how}"),
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
            let mut state = self.lock();
            let at = state.spares.iter().position(|spare| std::ptr::eq(&*spare.worker, worker));
            at.map(|at| state.spares.remove(at))
        };
        self.forget(worker);
        if lost.is_some_and(|spare| spare.ready) {
            self.refill();
        }
    }

    fn end(&self, worker: &Worker) {
        worker.shut_down();
        self.forget(worker);
    }

    fn forget(&self, worker: &Worker) {
        let place = worker.place();
        for path in [&place.socket, &place.log] {
            let _ = std::fs::remove_file(path);
        }
    }

    fn clear(&self) {
        let _ = std::fs::remove_dir_all(&self.directory);
        for entry in std::fs::read_dir(&self.logs).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(LOG_STEM) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
