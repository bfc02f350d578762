//! One sandbox as the daemon holds it: its record, its CPU half, its workers.
//!
//! Lock order: `operation_lock`, then `workers`, then `record`. Nothing that waits for a program or a worker is done with
//! `record` locked, so that `ps` always answers.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rekindle_protocol::daemon::{EventNotice, Sandbox as Shown, State};
use rekindle_sandbox::{Exit, INIT_ARGUMENT, Sandbox as CpuHalf, Spec};

use crate::caches::{Caches, Mapped};
use crate::error::{Error, Result};
use crate::events;
use crate::host::limits::Group;
use crate::host::lock;
use crate::host::paths::Paths;
use crate::images::cpu_pages;
use crate::images::verify::page_files;
use crate::network::SandboxNetwork;
use crate::pool::WorkerPool;
use crate::sandboxes::admission::AdmissionSocket;
use crate::sandboxes::descent::Descent;
use crate::sandboxes::last_cut::LastCut;
use crate::sandboxes::last_image::LastImage;
use crate::sandboxes::operation_lock::OperationLock;
use crate::sandboxes::record::{Record, state_word};
use crate::sandboxes::recovery::since_1970_ms;
use crate::sandboxes::waker::Waker;
use crate::sandboxes::workers::Workers;

pub mod admission;
pub mod asleep;
pub mod descent;
mod error;
pub mod last_cut;
pub mod last_image;
mod log_lines;
pub mod logs;
pub mod members;
pub mod mending;
pub mod names;
mod network;
mod operation;
mod operation_lock;
pub mod quiesce;
pub mod record;
pub mod recovery;
pub mod refusals;
pub mod registry;
pub mod standstill;
mod stats;
pub mod steps;
pub mod traces;
mod waker;
pub mod workers;

/// How long a sandbox's init may take to put into the log what was printed. It may be serving something else.
const FLUSH: Duration = Duration::from_secs(1);

pub use error::SandboxError;
pub use operation::Operation;

pub struct Sandbox {
    pub id: String,
    pub run_directory: PathBuf,
    /// What the program prints.
    pub log: PathBuf,
    /// How its restore and its checkpoints went.
    pub traces: PathBuf,
    /// The page files that the program maps; not there if it maps none.
    pub pages: PathBuf,
    /// What its last image has of its memory.
    pub last_image: Arc<LastImage>,
    /// What its GPU memory was then.
    pub last_cut: LastCut,
    /// Whether it was seen to write to pinned memory while that was copied behind its GPU's work.
    pub writes_pinned: AtomicBool,
    /// The store that its GPU half goes through from one worker to another.
    pub moving: PathBuf,
    /// The store that its workers write the state of its GPU half to, so that the loss of one can be mended.
    mending: PathBuf,
    /// When such losses were mended last.
    losses: Mutex<Vec<Instant>>,
    store: PathBuf,
    records: PathBuf,
    logs: PathBuf,
    criu_cache: PathBuf,
    refusals: refusals::Memory,
    log_max: u64,
    pub pool: Arc<WorkerPool>,
    record: Mutex<Record>,
    changed: Condvar,
    /// No other daemon may touch the run directory while this is open.
    claim: Mutex<Option<File>>,
    /// The ended one whose name it has, until it is up: it has that back if nothing comes of this one.
    former: Mutex<Option<Arc<Sandbox>>>,
    /// The one that goes on in its place, after a failure.
    successor: OnceLock<Arc<Sandbox>>,
    cpu: OnceLock<CpuHalf>,
    admission: OnceLock<AdmissionSocket>,
    pub network: SandboxNetwork,
    /// What limits it.
    group: Mutex<Option<Group>>,
    workers: Mutex<Workers>,
    /// Of checkpoints, falling asleep and waking.
    operation_lock: OperationLock,
    /// The name of the daemon's state.
    state: String,
    wake_problem: Mutex<Option<String>>,
    /// What it may have mapped of caches.
    mapped: Mutex<Vec<Mapped>>,
    /// The number of the last worker; changed with `workers` locked.
    last_number: AtomicU32,
    /// What waits for its GPU half to wake.
    waker: Waker,
    descent: Descent,
}

impl Sandbox {
    pub fn new(paths: &Paths, pool: &Arc<WorkerPool>, record: Record) -> Arc<Sandbox> {
        let id = record.id.clone();
        Arc::new(Sandbox {
            run_directory: paths.run_directories().join(&id),
            log: paths.logs().join(format!("{id}.log")),
            pages: paths.pages().join(&id),
            last_image: Arc::default(),
            last_cut: LastCut::default(),
            writes_pinned: AtomicBool::new(false),
            traces: traces::place(&paths.sandboxes(), &id),
            moving: paths.moving(),
            mending: paths.mending(),
            losses: Mutex::default(),
            store: paths.store(),
            state: paths.name.clone(),
            records: paths.sandboxes(),
            logs: paths.logs(),
            criu_cache: paths.criu_cache(),
            refusals: refusals::Memory::in_directory(&paths.state),
            log_max: paths.log_max,
            pool: pool.clone(),
            record: Mutex::new(record),
            changed: Condvar::new(),
            claim: Mutex::default(),
            former: Mutex::default(),
            successor: OnceLock::new(),
            cpu: OnceLock::new(),
            admission: OnceLock::new(),
            network: SandboxNetwork::default(),
            group: Mutex::default(),
            workers: Mutex::default(),
            operation_lock: OperationLock::default(),
            wake_problem: Mutex::default(),
            mapped: Mutex::default(),
            last_number: AtomicU32::new(0),
            waker: Waker::default(),
            descent: Descent::default(),
            id,
        })
    }

    /// Takes the run directory for this daemon, if it is there; an error if another one that runs has it.
    pub fn claim(&self) -> Result<()> {
        if self.run_directory.is_dir() {
            let claimed = lock::claim(&self.run_directory)?;
            *self.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(claimed);
        }
        Ok(())
    }

    pub fn record(&self) -> Record {
        self.lock().clone()
    }

    pub fn name(&self) -> String {
        self.lock().name.clone()
    }

    /// The same for programs that can give each other arrays: the daemon's state, and whose arrays they have.
    pub fn place(&self) -> String {
        format!("{} {}", self.state, self.record().owner())
    }

    pub fn is_live(&self) -> bool {
        self.lock().is_live()
    }

    /// Whether it has ended, and does not wait to be brought back.
    pub fn has_ended(&self) -> bool {
        let record = self.lock();
        !record.is_live() && !record.goes_on()
    }

    /// Changes the record, on disk too, and wakes all who wait for a change.
    pub fn update(&self, change: impl FnOnce(&mut Record)) -> Result<()> {
        let mut record = self.lock();
        let before = (record.state, record.problem.clone());
        change(&mut record);
        self.changed.notify_all();
        tell_of(&record, &before);
        record.save(&self.records)
    }

    /// As [`Sandbox::update`] where a failure to write must not stop the work: the next daemon knows less, that is all.
    pub fn note(&self, change: impl FnOnce(&mut Record)) {
        if let Err(error) = self.update(change) {
            log::error!("{error}");
        }
    }

    /// Notes something that the user should see.
    pub fn report_problem(&self, problem: String) {
        log::warn!("sandbox {:?}: {problem}", self.name());
        self.note(|record| record.problem = Some(problem));
    }

    /// As [`Sandbox::report_problem`], unless the sandbox was forgotten meanwhile: its record stays removed.
    pub fn report_problem_if_known(&self, problem: String) {
        let mut record = self.lock();
        log::warn!("sandbox {:?}: {problem}", record.name);
        if !record.is_kept(&self.records) {
            return;
        }
        record.problem = Some(problem);
        if let Err(error) = record.save(&self.records) {
            log::error!("{error}");
        }
    }

    /// Whether it was not forgotten.
    pub fn is_known(&self) -> bool {
        self.lock().is_kept(&self.records)
    }

    /// Forgets an ended sandbox: its record and its logs. The room that those took, if nobody else has them.
    pub fn forget(&self) -> u64 {
        self.network.close();
        self.lock().remove(&self.records);
        let _ = std::fs::remove_file(&self.traces);
        let mut freed = 0;
        for entry in std::fs::read_dir(&self.logs).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&format!("{}.", self.id)) {
                let found = entry.metadata().ok().filter(|found| found.nlink() == 1);
                if std::fs::remove_file(entry.path()).is_ok() {
                    freed += found.map_or(0, |found| found.blocks() * 512);
                }
            }
        }
        freed
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
        let mut shown = Shown { mending: self.mending_shown(), ..record.shown(device, shared, pinned, pids) };
        if record.is_live() {
            shown.refused = refusals::read(&self.run_directory);
        }
        shown
    }

    /// Where its CPU half lives, and how its init is run.
    pub fn spec(&self) -> Spec {
        Spec {
            init: vec![self.pool.program.clone().into_os_string(), INIT_ARGUMENT.into()],
            run_dir: self.run_directory.clone(),
            log: Some(self.log.clone()),
            criu_cache: Some(self.criu_cache.clone()),
            pages: Some(self.pages.clone()).filter(|pages| pages.is_dir()),
            mounts: self.record().mounts,
            network: self.network.network().cloned(),
            groups: self.group().as_ref().map(Group::doors).unwrap_or_default(),
            log_max: self.log_max,
        }
    }

    /// It has ended, and is not brought back after all.
    pub fn stays_ended(&self) {
        if self.record().state != State::Stopped {
            self.network.close();
        }
    }

    /// Has it limited as its record says.
    pub fn limit(&self) -> Result<()> {
        let group = Group::make(&self.record().limits, &self.id)?;
        *self.group() = group;
        Ok(())
    }

    fn group(&self) -> MutexGuard<'_, Option<Group>> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The CPU half; an error once the program has ended.
    pub fn cpu(&self, wanted: &'static str) -> Result<&CpuHalf> {
        let record = self.record();
        match self.cpu.get() {
            _ if record.device => Err(SandboxError::ContainerDevice { name: record.name, wanted }.into()),
            Some(cpu) if record.is_live() => Ok(cpu),
            _ => Err(self.not_running(wanted)),
        }
    }

    fn not_running(&self, wanted: &'static str) -> Error {
        let record = self.record();
        SandboxError::NotRunning { name: record.name, state: state_word(record.state).to_string(), wanted }
            .into()
    }

    /// Whether the process `pid` runs in it.
    pub fn has(&self, pid: i32) -> bool {
        let init = self.cpu.get().filter(|_| self.is_live()).map(CpuHalf::init_pid);
        init.is_some_and(|init| pid == init || rekindle_sandbox::process::tree(init).contains(&pid))
    }

    pub fn set_admission(&self, admission: AdmissionSocket) {
        let _ = self.admission.set(admission);
    }

    pub fn admission(&self) -> Option<&AdmissionSocket> {
        self.admission.get()
    }

    /// There is a program: keeps its CPU half and sees to what is to be done when it ends.
    pub fn runs(self: &Arc<Sandbox>, cpu: CpuHalf) -> Result<()> {
        let pid = cpu.root_pid().unwrap_or(0);
        let _ = self.cpu.set(cpu);
        self.network.open();
        let sandbox = self.clone();
        std::thread::spawn(move || {
            if let Some(cpu) = sandbox.cpu.get() {
                let exit = cpu.wait_exit(None);
                sandbox.ended(exit.ok().flatten());
            }
        });
        self.update(|record| record.pid = pid)
    }

    /// Whether the loss of one more worker is mended: not so many within a time.
    pub fn may_mend(&self, most: usize, within: Duration) -> bool {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        losses.retain(|at| at.elapsed() < within);
        losses.push(Instant::now());
        losses.len() <= most
    }

    /// Nothing more is to be done before the program counts as running.
    pub fn is_up(&self) -> Result<()> {
        self.update(Record::rest)?;
        if let Some(former) = self.take_former() {
            former.forget();
        }
        self.see_to_mending();
        Ok(())
    }

    pub fn set_former(&self, former: Arc<Sandbox>) {
        *self.former.lock().unwrap_or_else(PoisonError::into_inner) = Some(former);
    }

    /// Ends a program that cannot go on, if it is brought back then.
    pub fn end_if_brought_back(&self) {
        if self.is_brought_back() {
            self.end_program();
        }
    }

    /// Whether its program runs again when it fails.
    pub fn is_brought_back(&self) -> bool {
        self.record().recovery.is_some_and(|recovery| recovery.restarts())
    }

    pub fn end_program(&self) {
        if let Some(cpu) = self.cpu.get()
            && let Err(error) = cpu.kill()
        {
            log::error!("the program of {:?} was not ended: {error}", self.name());
        }
    }

    pub fn set_successor(&self, successor: &Arc<Sandbox>) {
        let _ = self.successor.set(successor.clone());
    }

    pub fn successor(&self) -> Option<Arc<Sandbox>> {
        self.successor.get().cloned()
    }

    pub fn take_former(&self) -> Option<Arc<Sandbox>> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Has what the program has printed so far be in its log, if it runs and nothing is done to it just now.
    pub fn flush_log(&self) {
        let rests = matches!(self.record().state, State::Running | State::Asleep);
        if let Some(cpu) = self.cpu.get().filter(|_| rests)
            && let Err(error) = cpu.flush(FLUSH)
        {
            log::debug!("the log of {:?} may not have all yet: {error}", self.name());
        }
    }

    /// Takes back all that the sandbox had and notes how it ended, and that it did just now.
    pub fn ended(&self, exit: Option<Exit>) {
        self.ended_at(exit, SystemTime::now());
    }

    /// As [`Sandbox::ended`], of one that ended while no daemon ran.
    pub fn ended_at(&self, exit: Option<Exit>, time: SystemTime) {
        if let Some(admission) = self.admission.get() {
            admission.close();
        }
        self.call_off_descent();
        self.operation_lock.close(|| self.take_back(exit, time));
        log::info!("sandbox {:?} ended: {exit:?}", self.name());
    }

    /// When its program last printed something, or its init last noted something, which it does at the end.
    pub fn last_sign(&self) -> SystemTime {
        let changed = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
        [&self.log, &self.run_directory]
            .into_iter()
            .filter_map(|path| changed(path))
            .max()
            .unwrap_or_else(SystemTime::now)
    }

    fn take_back(&self, exit: Option<Exit>, time: SystemTime) {
        for worker in self.workers().close() {
            worker.shut_down();
        }
        match exit {
            Some(Exit::Stopped) => self.network.stopped(),
            _ if self.record().recovery.is_some_and(|recovery| recovery.restarts()) => self.network.stopped(),
            _ => self.network.close(),
        }
        asleep::end(self);
        self.end_mending();
        self.tell_of_sigbus(exit);
        page_files::let_go(&self.pages);
        self.last_image.end();
        // All its processes have ended.
        let out_of_memory = self.group().take().is_some_and(|group| group.ran_out_of_memory());
        if out_of_memory && exit.is_some_and(|exit| exit.shell_code() != 0) {
            self.report_problem(
                "a process of the program was ended by the kernel, for it needed more than the sandbox's limit of memory"
                    .to_string(),
            );
        } else if exit == Some(Exit::WithInit) {
            self.report_problem(
                "the first process of the sandbox was killed, by somebody outside of it, and the kernel ended the program with it"
                    .to_string(),
            );
        }
        let refused = refusals::read(&self.run_directory);
        if let Some(program) = self.record().program.filter(|_| !refused.is_empty()) {
            self.refusals.remember(&program, &refused);
        }
        for directory in [&self.run_directory, &self.pages] {
            if let Err(error) = remove_directory(directory) {
                log::warn!("{error}");
            }
        }
        self.note(|record| {
            record.state = match exit {
                Some(Exit::Code(_)) => State::Exited,
                Some(Exit::Signal(_) | Exit::WithInit) => State::Killed,
                Some(Exit::Stopped) => State::Stopped,
                None => State::Failed,
            };
            record.refused = refused;
            record.exit_code = exit.map(|exit| exit.shell_code());
            record.ended = Some(crate::host::clock::rfc3339(time));
            if let Some(recovery) = &mut record.recovery {
                recovery.ended(since_1970_ms(time));
            }
            record.workers.clear();
            record.asleep = None;
            record.moving = None;
        });
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.claim.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A program whose page cannot be read gets SIGBUS, which says nothing.
    fn tell_of_sigbus(&self, exit: Option<Exit>) {
        let image = self.record().image.filter(|_| exit == Some(Exit::Signal(libc::SIGBUS)));
        if let Some(image) = image
            && self.pages.is_dir()
            && let Some(error) = cpu_pages::unreadable(&self.store, &image, &self.pages)
        {
            self.report_problem(format!(
                "the program was ended by SIGBUS, for its memory in image {image:?} cannot be read: {error}"
            ));
        }
    }

    /// The root directory of its program, as the host sees it.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.record().pid))
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

    /// Why its GPU half could not be woken the last time.
    pub fn wake_problem(&self) -> Option<String> {
        self.wake_problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_wake_problem(&self, problem: Option<String>) {
        *self.wake_problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// The most bytes of its log that are kept.
    pub fn log_max(&self) -> u64 {
        self.log_max
    }

    pub fn caches(&self) -> &Arc<Caches> {
        &self.pool.caches
    }

    /// This counts as used until the program has ended.
    pub fn add_mapped(&self, mapped: Mapped) {
        let mut all = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_live() {
            all.push(mapped);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells those who listen what has changed.
fn tell_of(record: &Record, before: &(State, Option<String>)) {
    let of = |happened: &mut EventNotice| happened.sandbox = Some(record.name.clone());
    if record.state != before.0 {
        events::tell("state", |happened| {
            of(happened);
            happened.state = Some(record.state);
            happened.exit_code = record.exit_code;
        });
    }
    if record.problem != before.1 && record.problem.is_some() {
        events::tell("problem", |happened| {
            of(happened);
            happened.problem = record.problem.clone();
        });
    }
}

/// Removes a sandbox's directory; it may be gone already.
pub fn remove_directory(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path, error)),
        _ => Ok(()),
    }
}
