//! Workers whose contexts are ready, for the next sandboxes.
//!
//! Opening a GPU takes longer than most of a restore, so it is done before anyone asks. For each GPU that was used last
//! some workers wait; one that a sandbox takes is its own from then on and never comes back. The place of one that was
//! taken, or was killed, is filled in the background: for those taken when the sandbox runs ([`WorkerPool::refill`]),
//! since a driver that makes a context slows down what it does beside that.
//!
//! A worker that ends before it was ready is not replaced until the next sandbox asks, so that a GPU that cannot be
//! opened is not asked again and again. For the images restored last, workers wait that have loaded the image's modules
//! already ([`ready`]): they are good for that image, and for others that begin alike ([`modules`]). The others load
//! [`preload`] what images have in common. Waiting workers end with the daemon; whatever kills it closes their connection.

mod modules;
mod preload;
mod ready;
mod wants;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rekindle_protocol::daemon::Spare as Shown;

use crate::caches::Caches;
use crate::error::Result;
use crate::host::places::Places;
use crate::workers::{Address, OnEnd, Start, Worker};
use modules::Modules;
use preload::Preloads;
use wants::Want;
pub use wants::{ImageKey, PoolSize};

/// How logs of waiting workers begin.
const LOG_STEM: &str = "pool-";

pub struct WorkerPool {
    /// `rekindled` itself, which workers are made of.
    pub program: PathBuf,
    places: Places,
    directory: PathBuf,
    logs: PathBuf,
    store: PathBuf,
    size: PoolSize,
    pub caches: Arc<Caches>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The one used last first.
    wants: Vec<Want>,
    spares: Vec<Spare>,
    modules: Modules,
    closed: bool,
}

struct Spare {
    want: Want,
    worker: Arc<Worker>,
    ready: bool,
    preloads: Preloads,
}

impl WorkerPool {
    /// An empty pool. Clears away what a daemon that was killed has left.
    pub fn open(places: &Places, program: PathBuf, size: PoolSize, caches: Arc<Caches>) -> Arc<WorkerPool> {
        let pool = WorkerPool {
            program,
            places: places.clone(),
            directory: places.pool(),
            logs: places.logs(),
            store: places.store(),
            size,
            caches,
            state: Mutex::default(),
        };
        pool.clear();
        Arc::new(pool)
    }

    /// A worker for a sandbox: one that waits ready, else a new one. Only with `or_alike` it may be one that was made ready
    /// for another image, which may turn out to be of no use for this one.
    pub fn worker(
        self: &Arc<WorkerPool>,
        gpu: &str,
        image: Option<&ImageKey>,
        or_alike: bool,
        address: Address,
        output: &Path,
        on_end: impl Fn() -> OnEnd,
    ) -> Result<Arc<Worker>> {
        self.note_use(gpu, image);
        if let Some(image) = image {
            self.lock().modules.note_restore(&image.path);
        }
        while let Some(spare) = self.pick(gpu, image, or_alike) {
            match spare.take(address.clone(), output, on_end()) {
                Ok(()) => return Ok(spare),
                Err(error) => {
                    log::warn!("a waiting worker could not be taken: {error}");
                    spare.shut_down();
                }
            }
        }
        Worker::start(&Start { program: &self.program, address, gpu, output, spare: false }, on_end())
    }

    /// Has workers wait for this GPU from now on, and for this image.
    pub fn prepare(self: &Arc<WorkerPool>, gpu: &str, image: Option<&ImageKey>) {
        self.note_use(gpu, image);
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
            state.wants.retain(|want| want.image.as_ref().is_none_or(|image| image.path.exists()));
            for want in state.wants.clone() {
                let wanted = self.size.per_gpu.min(left);
                left -= wanted;
                let found: Vec<Spare> =
                    state.spares.extract_if(.., |spare| spare.want == want).take(wanted).collect();
                missing.extend((found.len()..wanted).map(|_| want.clone()));
                kept.extend(found);
            }
            let surplus = std::mem::replace(&mut state.spares, kept);
            let mut new = Vec::new();
            for want in missing {
                match self.start(&want.gpu) {
                    Ok(worker) => {
                        new.push((worker.clone(), want.clone()));
                        state.spares.push(Spare {
                            want,
                            worker,
                            ready: false,
                            preloads: Preloads::default(),
                        });
                    }
                    Err(error) => log::warn!("no worker waits for {}: {error}", want.gpu),
                }
            }
            (new, surplus)
        };
        for spare in surplus {
            self.end(&spare.worker);
        }
        for (worker, want) in new {
            let pool = self.clone();
            std::thread::spawn(move || pool.get_ready(&worker, &want));
        }
        self.tend();
    }

    /// Has nobody wait for the image of this name any more, so that it can be removed: a worker that loads its modules
    /// just now reads it.
    pub fn let_go(self: &Arc<WorkerPool>, image: &Path) {
        let waits = |want: &Want| want.image.as_ref().is_some_and(|key| key.path == image);
        {
            let mut state = self.lock();
            state.wants.retain(|want| !waits(want));
            state.modules.forget(image);
        }
        self.end_those(waits);
    }

    /// Ends those that wait for images, and the GPU memory that they hold.
    pub fn end_prepared(&self) {
        self.end_those(|want| want.image.is_some());
    }

    fn end_those(&self, chosen: impl Fn(&Want) -> bool) {
        let gone: Vec<Spare> = self.lock().spares.extract_if(.., |spare| chosen(&spare.want)).collect();
        for spare in &gone {
            spare.worker.kill();
            self.forget(&spare.worker);
        }
    }

    pub fn shown(&self) -> Vec<Shown> {
        let name = |image: &ImageKey| {
            image.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
        };
        let shown = |spare: &Spare| Shown {
            gpu: spare.want.gpu.clone(),
            image: spare.want.image.as_ref().map(name),
            pid: spare.worker.pid(),
            ready: spare.ready && spare.worker.ended().is_none(),
            modules: spare.preloads.loaded.len() as u64,
            module_bytes: spare.preloads.loaded.iter().map(|module| module.bytes).sum(),
        };
        self.lock().spares.iter().map(shown).collect()
    }

    /// Lets none wait any more. Those that do end with this process.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.spares.clear();
        drop(state);
        self.clear();
    }

    fn note_use(&self, gpu: &str, image: Option<&ImageKey>) {
        wants::note(&mut self.lock().wants, gpu, image, &self.size);
    }

    /// One that waits for this image, else for another that it is like, else for anybody.
    fn pick(&self, gpu: &str, image: Option<&ImageKey>, or_alike: bool) -> Option<Arc<Worker>> {
        let mut state = self.lock();
        let find = |state: &State, image: Option<&ImageKey>, busy: bool| {
            state.spares.iter().position(|spare| {
                let alive = spare.ready && spare.worker.ended().is_none() && spare.preloads.busy == busy;
                alive && spare.want.gpu == gpu && spare.want.image.as_ref() == image
            })
        };
        let is_alike = |made_for: &ImageKey| {
            let of_store = image.filter(|image| or_alike && !image.in_memory && !made_for.in_memory);
            of_store.is_some_and(|image| state.modules.is_alike(gpu, &image.path, &made_for.path))
        };
        let find_alike = |state: &State| {
            state.spares.iter().position(|spare| {
                let alive = spare.ready && spare.worker.ended().is_none();
                alive && spare.want.gpu == gpu && spare.want.image.as_ref().is_some_and(is_alike)
            })
        };
        let at = find(&state, image, false)
            .or_else(|| find_alike(&state))
            .or_else(|| find(&state, None, false))
            .or_else(|| find(&state, None, true))?;
        let Spare { want, worker, .. } = state.spares.remove(at);
        if want.image.is_some() && want.image.as_ref() != image {
            worker.note_made_for_another();
        }
        Some(worker)
    }

    fn start(self: &Arc<WorkerPool>, gpu: &str) -> Result<Arc<Worker>> {
        crate::host::places::private_directory(&self.directory, true)?;
        let id = self.places.new_id()?;
        let log = self.logs.join(format!("{LOG_STEM}{id}.log"));
        let address = Address { number: 0, socket: self.directory.join(format!("{id}.sock")), log };
        let start =
            Start { program: &self.program, address, gpu, output: Path::new("/dev/null"), spare: true };
        let pool: Weak<WorkerPool> = Arc::downgrade(self);
        let on_end: OnEnd = Box::new(move |worker| {
            if let Some(pool) = pool.upgrade() {
                pool.lost(worker);
            }
        });
        Worker::start(&start, on_end)
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
        let address = worker.address();
        for path in [&address.socket, &address.log] {
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
