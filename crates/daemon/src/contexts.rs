//! Contexts that programs of one tenant share.
//!
//! ```text
//!   tenant, GPU ─▶ process with contexts ─┬─ address slice 0: a sandbox's program
//!                                         └─ address slice 7: another's
//! ```
//!
//! A program that shares keeps to one [`Slice`] of the addresses for its life, and its images keep it. A process takes one
//! program of each slice; where the slice is taken there, the next process does, or a new one. Processes outlive the
//! daemon while they have programs, and end by themselves when they have had none for a while.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rekindle_device::Slice;
use rekindle_protocol::daemon::SharedContexts as Shown;
use rekindle_protocol::worker::{Portion, ShareMemory, Sharing, ask};

use crate::error::Result;
use crate::host::paths::{Paths, private_directory};
use crate::workers::{Address, OnEnd, OnLoss, Purpose, Start, Worker, WorkerError};

/// How long a process may take to say who shares its contexts. It may still be making them.
const LIMIT: Duration = Duration::from_secs(60);
const SOCKET_ENDING: &str = "sock";
const ADMISSION: &str = "serve one program more";

/// The processes that have shared contexts.
pub struct Contexts {
    /// `rekindled` itself, which workers are made of.
    program: PathBuf,
    paths: Paths,
    all: Mutex<Vec<Shared>>,
}

/// With whom a program shares contexts, and as what.
pub struct Share {
    /// Whose programs they are: none of another tenant's ever have the same context.
    pub tenant: String,
    /// It gets one of these, the first where that is all the same.
    pub slices: Vec<Slice>,
    pub portion: Portion,
    pub memory: ShareMemory,
}

struct Shared {
    tenant: String,
    gpu: String,
    process: Arc<Worker>,
}

impl Contexts {
    /// With the processes that an earlier daemon has started.
    pub fn open(paths: &Paths, program: PathBuf) -> Arc<Contexts> {
        let contexts = Contexts { program, paths: paths.clone(), all: Mutex::default() };
        for entry in std::fs::read_dir(paths.contexts()).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|ending| ending == SOCKET_ENDING) {
                contexts.find_again(&entry.path());
            }
        }
        Arc::new(contexts)
    }

    /// Has one of the processes serve a sandbox's program, whose worker this is then.
    pub fn admit(
        &self,
        gpu: &str,
        share: &Share,
        address: Address,
        on: impl Fn() -> (OnEnd, OnLoss),
    ) -> Result<Arc<Worker>> {
        let mut all = self.all();
        all.retain(|shared| shared.process.ended().is_none());
        for shared in all.iter().filter(|shared| shared.tenant == share.tenant && shared.gpu == gpu) {
            match shared.admit(&address, share) {
                Ok(Some(slice)) => return shared.worker((address, slice), on()),
                Ok(None) => {}
                Err(error) => log::warn!("a process with shared contexts takes no program: {error}"),
            }
        }
        let shared =
            Shared { tenant: share.tenant.clone(), gpu: gpu.to_string(), process: self.start(gpu, share)? };
        let Some(slice) = shared.admit(&address, share)? else {
            let (action, reason) = (ADMISSION, "its new context has failed already".to_string());
            return Err(WorkerError::Failed { action, reason }.into());
        };
        let worker = shared.worker((address, slice), on());
        all.push(shared);
        worker
    }

    /// Every process that lives.
    pub fn shown(&self) -> Vec<Shown> {
        let live = |shared: &&Shared| shared.process.ended().is_none();
        let shown = |shared: &Shared| Shown {
            tenant: shared.tenant.clone(),
            gpu: shared.gpu.clone(),
            pid: shared.process.pid(),
        };
        self.all().iter().filter(live).map(shown).collect()
    }

    fn start(&self, gpu: &str, share: &Share) -> Result<Arc<Worker>> {
        let directory = self.paths.contexts();
        private_directory(&directory, true)?;
        let id = self.paths.new_id()?;
        let address = self.address(&id);
        let left = address.clone();
        let output = address.log.clone();
        let purpose = Purpose::Shared { tenant: &share.tenant, keep: self.paths.context_keep };
        let (data, links) = (self.paths.data_socket(), self.paths.links());
        let (program, output) = (&*self.program, &*output);
        let start = Start { program, address, gpu, output, purpose, data, links };
        Worker::start(&start, Box::new(move |worker| forget(&left, worker)))
    }

    fn address(&self, id: &str) -> Address {
        Address {
            number: 0,
            socket: self.paths.contexts().join(format!("{id}.{SOCKET_ENDING}")),
            log: self.paths.logs().join(format!("contexts-{id}.log")),
        }
    }

    fn find_again(&self, socket: &Path) {
        let Some(id) = socket.file_stem() else { return };
        let address = self.address(&id.to_string_lossy());
        let left = address.clone();
        let found =
            Worker::reconnect_with(address, 0, Box::new(move |worker| forget(&left, worker)), |worker| {
                let action = "tell who shares its contexts";
                let sharing = worker.ask_within(action, ask::GetSharing {}, &[], Some(LIMIT))?;
                Ok((sharing.pid, sharing))
            });
        match found {
            Ok((process, Sharing { tenant, gpu, .. })) => self.all().push(Shared { tenant, gpu, process }),
            Err(error) => {
                log::warn!("shared contexts of an earlier daemon are no more: {error}");
                let _ = std::fs::remove_file(socket);
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Shared>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// What serves a program that was admitted.
    fn worker(&self, (address, slice): (Address, Slice), on: (OnEnd, OnLoss)) -> Result<Arc<Worker>> {
        let worker = Worker::of_process(address, self.process.pid(), on)?;
        worker.set_slice(slice);
        Ok(worker)
    }

    /// The first of the slices with which it takes a program; none if there is none.
    fn admit(
        &self,
        address: &Address,
        Share { slices, portion, memory, .. }: &Share,
    ) -> Result<Option<Slice>> {
        let [listen, log] = [&address.socket, &address.log].map(|path| path.to_string_lossy().into_owned());
        for slice in slices.iter().copied() {
            let (listen, log, portion) = (listen.clone(), log.clone(), *portion);
            let admit = ask::Admit { listen, log, slice, portion, memory: *memory };
            if self.process.ask_within(ADMISSION, admit, &[], Some(LIMIT))? {
                return Ok(Some(slice));
            }
        }
        Ok(None)
    }
}

/// Removes what a process leaves. The log of one that failed stays: it says why.
fn forget(address: &Address, ended: &Worker) {
    let _ = std::fs::remove_file(&address.socket);
    if ended.ended_well() {
        let _ = std::fs::remove_file(&address.log);
    }
}
