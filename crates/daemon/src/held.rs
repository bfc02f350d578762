//! One sandbox as the daemon holds it: its record, its CPU half, its workers.
//!
//! Lock order: `turn`, then `workers`, then `record`. Nothing that waits for a program or a worker is done with
//! `record` locked, so that `ps` always answers.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::{Sandbox as Shown, State};
use rekindle_sandbox::{Exit, INIT_ARGUMENT, Sandbox, Spec};

use crate::caches::{Caches, Mapped};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::places::Places;
use crate::process::is_alive;
use crate::record::{Record, WorkerRecord, state_word};
use crate::turn::{Busy, Turn};
use crate::worker::{OnEnd, Place, Worker};
use crate::worker_pool::{ImageKey, WorkerPool};
use crate::{cpu_pages, sleep, traces};

/// How long after a worker's end its client may still be on its way out.
const PARTING: Duration = Duration::from_millis(250);

pub struct Held {
    pub id: String,
    pub run_directory: PathBuf,
    /// What the program prints.
    pub log: PathBuf,
    /// How its restore and its checkpoints went.
    pub traces: PathBuf,
    /// The page files that the program maps; not there if it maps none.
    pub pages: PathBuf,
    store: PathBuf,
    records: PathBuf,
    logs: PathBuf,
    criu_cache: PathBuf,
    pool: Arc<WorkerPool>,
    record: Mutex<Record>,
    changed: Condvar,
    cpu: OnceLock<Sandbox>,
    gate: OnceLock<Gate>,
    workers: Mutex<Vec<Arc<Worker>>>,
    /// Of checkpoints, falling asleep and waking.
    turn: Turn,
    wake_problem: Mutex<Option<String>>,
    /// What it may have mapped of caches.
    mapped: Mutex<Option<Mapped>>,
    /// The number of the last worker; changed with `workers` locked.
    last_number: AtomicU32,
}

impl Held {
    pub fn new(places: &Places, pool: &Arc<WorkerPool>, record: Record) -> Arc<Held> {
        let id = record.id.clone();
        Arc::new(Held {
            run_directory: places.run_directories().join(&id),
            log: places.logs().join(format!("{id}.log")),
            pages: places.pages().join(&id),
            traces: traces::place(&places.sandboxes(), &id),
            store: places.store(),
            records: places.sandboxes(),
            logs: places.logs(),
            criu_cache: places.criu_cache(),
            pool: pool.clone(),
            record: Mutex::new(record),
            changed: Condvar::new(),
            cpu: OnceLock::new(),
            gate: OnceLock::new(),
            workers: Mutex::default(),
            turn: Turn::default(),
            wake_problem: Mutex::default(),
            mapped: Mutex::default(),
            last_number: AtomicU32::new(0),
            id,
        })
    }

    pub fn record(&self) -> Record {
        self.lock().clone()
    }

    pub fn name(&self) -> String {
        self.lock().name.clone()
    }

    pub fn is_live(&self) -> bool {
        self.lock().is_live()
    }

    /// Changes the record, on disk too, and wakes all who wait for a change.
    pub fn update(&self, change: impl FnOnce(&mut Record)) -> Result<()> {
        let mut record = self.lock();
        change(&mut record);
        self.changed.notify_all();
        record.save(&self.records)
    }

    /// As [`Held::update`] where a failure to write must not stop the work: the next daemon knows less, that is all.
    pub fn note(&self, change: impl FnOnce(&mut Record)) {
        if let Err(error) = self.update(change) {
            log::error!("{error}");
        }
    }

    /// Notes something that the user should see.
    pub fn tell(&self, problem: String) {
        log::warn!("sandbox {:?}: {problem}", self.name());
        self.note(|record| record.problem = Some(problem));
    }

    /// Forgets an ended sandbox: its record and its logs.
    pub fn forget(&self) {
        self.lock().remove(&self.records);
        let _ = std::fs::remove_file(&self.traces);
        for entry in std::fs::read_dir(&self.logs).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&format!("{}.", self.id)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// As `ps` shows it. Asks the workers what they hold, without waiting for one that is busy.
    pub fn shown(&self) -> Shown {
        let record = self.record();
        let (mut device, mut shared, mut pinned) = (0, 0, 0);
        let workers = self.live_workers();
        if matches!(record.state, State::Running | State::Asleep) {
            for status in workers.iter().filter_map(|worker| worker.glance()) {
                device += status.device_bytes;
                shared += status.shared_bytes;
                pinned += status.pinned_bytes;
            }
        }
        let pids = workers.iter().map(|worker| worker.pid()).collect();
        record.shown(device, shared, pinned, pids)
    }

    /// Where its CPU half lives, and how its init is run.
    pub fn place(&self) -> Spec {
        Spec {
            init: vec![self.pool.program.clone().into_os_string(), INIT_ARGUMENT.into()],
            run_dir: self.run_directory.clone(),
            log: Some(self.log.clone()),
            criu_cache: Some(self.criu_cache.clone()),
            pages: Some(self.pages.clone()).filter(|pages| pages.is_dir()),
        }
    }

    /// The CPU half; an error once the program has ended.
    pub fn cpu(&self, wanted: &'static str) -> Result<&Sandbox> {
        let record = self.record();
        match self.cpu.get() {
            _ if record.device => Err(Error::ContainerDevice { name: record.name, wanted }),
            Some(cpu) if record.is_live() => Ok(cpu),
            _ => Err(self.not_running(wanted)),
        }
    }

    fn not_running(&self, wanted: &'static str) -> Error {
        let record = self.record();
        Error::NotRunning { name: record.name, state: state_word(record.state).to_string(), wanted }
    }

    /// Whether the process `pid` runs in it.
    pub fn has(&self, pid: i32) -> bool {
        let init = self.cpu.get().filter(|_| self.is_live()).map(Sandbox::init_pid);
        init.is_some_and(|init| pid == init || rekindle_sandbox::process::tree(init).contains(&pid))
    }

    pub fn set_gate(&self, gate: Gate) {
        let _ = self.gate.set(gate);
    }

    pub fn gate(&self) -> Option<&Gate> {
        self.gate.get()
    }

    /// There is a program: keeps its CPU half and sees to what is to be done when it ends.
    pub fn runs(self: &Arc<Held>, cpu: Sandbox) -> Result<()> {
        let pid = cpu.root_pid().unwrap_or(0);
        let _ = self.cpu.set(cpu);
        let held = self.clone();
        std::thread::spawn(move || {
            if let Some(cpu) = held.cpu.get() {
                let exit = cpu.wait_exit(None);
                held.ended(exit.ok().flatten());
            }
        });
        self.update(|record| record.pid = pid)
    }

    /// Nothing more is to be done before the program counts as running.
    pub fn is_up(&self) -> Result<()> {
        self.update(Record::rest)
    }

    /// No operation goes on.
    fn rest(&self) {
        self.note(Record::rest);
    }

    /// Takes back all that the sandbox had and notes how it ended.
    pub fn ended(&self, exit: Option<Exit>) {
        if let Some(gate) = self.gate.get() {
            gate.close();
        }
        self.turn.end(|| self.take_back(exit));
        log::info!("sandbox {:?} ended: {exit:?}", self.name());
    }

    fn take_back(&self, exit: Option<Exit>) {
        let workers = std::mem::take(&mut *self.workers());
        for worker in workers {
            worker.shut_down();
        }
        sleep::end(self);
        self.explain(exit);
        for directory in [&self.run_directory, &self.pages] {
            if let Err(error) = remove_directory(directory) {
                log::warn!("{error}");
            }
        }
        self.note(|record| {
            record.state = match exit {
                Some(Exit::Code(_)) => State::Exited,
                Some(Exit::Signal(_)) => State::Killed,
                Some(Exit::Stopped) => State::Stopped,
                None => State::Failed,
            };
            record.exit_code = exit.map(|exit| exit.shell_code());
            record.ended = Some(crate::clock::now());
            record.workers.clear();
            record.asleep = None;
        });
        *self.mapped.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A program whose page cannot be read gets SIGBUS, which says nothing.
    fn explain(&self, exit: Option<Exit>) {
        let image = self.record().image.filter(|_| exit == Some(Exit::Signal(libc::SIGBUS)));
        if let Some(image) = image
            && self.pages.is_dir()
            && let Some(error) = cpu_pages::unreadable(&self.store, &image, &self.pages)
        {
            self.tell(format!(
                "the program was ended by SIGBUS, for its memory in image {image:?} cannot be read: {error}"
            ));
        }
    }

    /// Waits until the sandbox has ended, or for so long.
    pub fn wait_end(&self, limit: Option<Duration>) -> Option<Record> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut record = self.lock();
        while record.is_live() {
            let step = match until {
                None => Duration::from_secs(3600),
                Some(until) => until.checked_duration_since(Instant::now())?,
            };
            record = self
                .changed
                .wait_timeout(record, step)
                .map_or_else(|error| error.into_inner().0, |pair| pair.0);
        }
        Some(record.clone())
    }

    /// As [`Held::begin`], once the GPU half is done with falling asleep or waking.
    pub fn begin_settled(&self, state: State, wanted: &'static str) -> Result<Operation<'_>> {
        self.take_turn(state, wanted, Busy::passes)
    }

    /// Begins an operation that no other may run beside; the state goes back when it is dropped.
    pub fn begin(&self, state: State, wanted: &'static str) -> Result<Operation<'_>> {
        self.take_turn(state, wanted, |_| false)
    }

    fn take_turn(
        &self,
        state: State,
        wanted: &'static str,
        waits_for: impl Fn(Busy) -> bool,
    ) -> Result<Operation<'_>> {
        let begin = || {
            if !self.lock().device {
                self.cpu(wanted)?;
            }
            self.update(|record| record.state = state).inspect_err(|_| self.rest())
        };
        let refuse = |busy| match busy {
            Busy::Operation(state) => {
                Error::Occupied { name: self.name(), state: state_word(state).to_string() }
            }
            Busy::End => self.not_running(wanted),
        };
        self.turn.take(state, waits_for, begin, refuse)?;
        Ok(Operation { held: self, wanted })
    }

    /// Whether the program has ended, or does so within a moment.
    pub fn is_ending(&self) -> bool {
        let began = Instant::now();
        let goes_on = || self.cpu.get().is_none_or(|cpu| matches!(cpu.exit_status(), Ok(None)));
        while goes_on() && began.elapsed() < PARTING {
            std::thread::sleep(Duration::from_millis(5));
        }
        !goes_on()
    }

    /// The workers that have not ended.
    pub fn live_workers(&self) -> Vec<Arc<Worker>> {
        self.workers().iter().filter(|worker| worker.ended().is_none()).cloned().collect()
    }

    /// The last worker that served `client`, if it is dead and the client is not.
    pub fn lost_worker(&self) -> Option<Arc<Worker>> {
        self.workers().iter().find(|worker| worker.ended().is_some() && is_alive(worker.client())).cloned()
    }

    /// Ends a worker that is not needed any more.
    pub fn end_worker(&self, worker: &Worker) {
        self.workers().retain(|held| held.number() != worker.number());
        // It is nobody's loss.
        worker.set_client(0);
        worker.shut_down();
    }

    /// Why its GPU half could not be woken the last time.
    pub fn wake_problem(&self) -> Option<String> {
        self.wake_problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_wake_problem(&self, problem: Option<String>) {
        *self.wake_problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Takes a further worker, for the restore of an image or for whatever comes, which may not be ready yet. [`Held::fill_pool`] is to follow.
    pub fn start_worker(self: &Arc<Held>, image: Option<&ImageKey>) -> Result<Arc<Worker>> {
        self.take_worker(image).inspect(|_| self.note_workers())
    }

    /// As [`Held::start_worker`], for a caller that is to [note](Held::note_workers) it beside other work: a file system
    /// may take longer to replace a record than all else.
    pub fn take_worker(self: &Arc<Held>, image: Option<&ImageKey>) -> Result<Arc<Worker>> {
        let mut workers = self.workers();
        let used = workers.iter().map(|worker| worker.number()).max().unwrap_or(0);
        let mut number = self.last_number.load(Ordering::Relaxed).max(used) + 1;
        // One that is ending, of an earlier daemon too, still has its place.
        while self.worker_place(number).socket.exists() {
            number += 1;
        }
        self.last_number.store(number, Ordering::Relaxed);
        let gpu = self.record().gpu;
        let place = self.worker_place(number);
        let worker = self.pool.worker(&gpu, image, place, &self.log, || self.on_worker_end())?;
        workers.push(worker.clone());
        Ok(worker)
    }

    /// Finds the workers of an earlier daemon again; those that are gone are told of.
    pub fn reconnect_workers(self: &Arc<Held>) {
        for WorkerRecord { number, client } in self.record().workers {
            match Worker::reconnect(self.worker_place(number), client, self.on_worker_end()) {
                Ok(worker) => self.workers().push(worker),
                Err(error) if is_alive(client) => {
                    self.tell(format!(
                        "its GPU worker died while no daemon ran ({error}); its GPU memory is lost"
                    ));
                }
                Err(_) => {}
            }
        }
        self.note_workers();
    }

    /// Writes down which workers there are and whom they serve.
    pub fn note_workers(&self) {
        let workers = self
            .live_workers()
            .iter()
            .map(|worker| WorkerRecord { number: worker.number(), client: worker.client() })
            .collect();
        self.note(|record| record.workers = workers);
    }

    fn worker_place(&self, number: u32) -> Place {
        let log = self.logs.join(format!("{}.worker-{number}.log", self.id));
        Place::in_sandbox(&self.run_directory, number, log)
    }

    pub fn caches(&self) -> &Arc<Caches> {
        &self.pool.caches
    }

    /// This counts as used until the program has ended.
    pub fn set_mapped(&self, mapped: Mapped) {
        let mut place = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        *place = self.is_live().then_some(mapped);
    }

    /// More is known of an image than when workers were made ready for it.
    pub fn look_again(&self, image: &Path) {
        self.pool.look_again(image);
    }

    /// Ends the workers that wait for images. [`Held::fill_pool`] is to follow.
    pub fn end_prepared(&self) {
        self.pool.end_prepared();
    }

    /// Has the next worker made ready; not to be done beside what is urgent.
    pub fn fill_pool(&self) {
        self.pool.refill();
    }

    /// Has a worker wait for an image on this sandbox's GPU.
    pub fn have_wait(&self, image: &ImageKey) {
        self.pool.prepare(&self.record().gpu, Some(image));
    }

    /// Has no worker wait for an image any more.
    pub fn let_go_of(&self, image: &Path) {
        self.pool.let_go(image);
    }

    fn on_worker_end(self: &Arc<Held>) -> OnEnd {
        let held: Weak<Held> = Arc::downgrade(self);
        Box::new(move |worker| {
            std::thread::sleep(PARTING);
            let Some(held) = held.upgrade() else { return };
            if held.is_live() && is_alive(worker.client()) {
                let how = worker.ended().unwrap_or_default();
                held.tell(format!("its GPU worker died ({how}); its GPU memory is lost"));
            }
        })
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation under way, such as a checkpoint.
pub struct Operation<'a> {
    held: &'a Held,
    /// What is done to it.
    wanted: &'static str,
}

impl Operation<'_> {
    /// What failed because the program ended says that, whatever noticed it first.
    pub fn explain(&self, error: Error) -> Error {
        if self.held.is_ending() {
            log::info!("{error}");
            return Error::EndedMeanwhile { name: self.held.name(), wanted: self.wanted };
        }
        error
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.held.turn.give_back(|| self.held.rest());
    }
}

/// Removes a sandbox's directory; it may be gone already.
pub fn remove_directory(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path, error)),
        _ => Ok(()),
    }
}
