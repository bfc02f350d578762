//! Taking an image of a running program: one cut over CPU and GPU, the program standing still.
//!
//! ```text
//! program   ──runs──┬─calls parked──────┬─frozen by CRIU────────────┬──runs──▶
//! worker            ├Quiesce─Detach─Save┴─(still saving)─SavePinned─┴Attach─Resume
//! CRIU              │               dump──┬ hook: wait for all ┬────┘
//! image             draft                 parts, manifest      CPU files, fsync, rename
//! ```
//!
//! A program that goes on does so as soon as all is in the draft; one that is to be stopped waits in the hook until the
//! image is there. Whatever fails: the draft goes, CRIU lets go of the program, the worker lets the client go on.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rekindle_driver::Hold;
use rekindle_protocol::daemon::{Mode, Operation, Report, State};
use rekindle_protocol::worker::{Request, Response, Status};
use rekindle_sandbox::pages::Served;
use rekindle_sandbox::process::tree as process_tree;
use rekindle_sandbox::{Cpu, Criu, DumpReport, DumpSpec, Frozen, Tree, driver_socket};
use rekindle_store::{Draft, Part, PartKind};

use crate::caches::Priority;
use crate::cpu_pages::{self, Pages};
use crate::daemon::Daemon;
use crate::driver_half::DriverHalf;
use crate::error::{Error, Result};
use crate::held::Held;
use crate::kept::Kept;
use crate::places::private_directory;
use crate::process::{self, is_alive};
use crate::quiet::Quiet;
use crate::reply::Reply;
use crate::timeline::{CPU, GPU, PINNED, Timeline};
use crate::traces::Tracing;
use crate::worker::Worker;
use crate::worker_pool::ImageKey;
use crate::{driver_half, fault, machine, names};

/// How long a stopped program's sandbox may take to be gone.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// CRIU counts in these.
const PAGE: u64 = 4096;

/// What the user asks for.
pub struct Wish<'a> {
    pub to: &'a str,
    pub leave_running: bool,
    /// How long the driver may wait for the GPU's work to end.
    pub gpu_wait: Duration,
    /// Whether the program waits for an app.
    pub framework: bool,
}

/// How it went.
struct Taken {
    /// For how long the program stood still.
    stopped_us: u64,
    /// The processes whose GPU halves there are.
    gpu_processes: usize,
}

/// What is taken.
struct Subject<'a> {
    /// Names its directory for the time of the dump.
    id: String,
    name: String,
    command: Vec<String>,
    /// As the user said it.
    gpu: String,
    mode: Mode,
    cpu: Cpu<'a>,
}

/// The GPU half and what holds it still.
enum Gpu<'a> {
    None,
    Worker { held: &'a Held, worker: &'a Worker },
    Driver,
}

/// One attempt.
struct Attempt<'a> {
    daemon: &'a Daemon,
    criu: Criu,
    subject: Subject<'a>,
    gpu: Gpu<'a>,
    /// The processes that use an AMD GPU, which CRIU's plugin takes.
    amd: Vec<i32>,
    /// Whether a program that uses no GPU is refused.
    needs_gpu: bool,
    wish: &'a Wish<'a>,
    timeline: &'a Timeline,
    warnings: Mutex<Vec<String>>,
    /// The pages, once CRIU has written the rest.
    served: Mutex<Option<Served>>,
    reply: &'a Reply<'a>,
}

pub fn checkpoint(daemon: &Daemon, held: &Held, wish: &Wish<'_>, reply: &Reply<'_>) -> Result<Report> {
    let (timeline, tracing) = (Timeline::begin(), Tracing::begin(Operation::Checkpoint, wish.to));
    let operation = held.begin_settled(State::Checkpointing, "checkpointed")?;
    let record = held.record();
    let cpu = held.cpu("checkpointed")?;
    let _claim = daemon.claims.take(cpu.pids().into_values())?;
    let worker = serving_worker(held)?;
    let gpu = match (&worker, record.mode) {
        (Some(worker), _) => Gpu::Worker { held, worker },
        (None, Mode::Sandbox) => Gpu::None,
        (None, Mode::Driver) => Gpu::Driver,
    };
    let subject = Subject {
        id: held.id.clone(),
        name: record.name,
        command: record.command,
        gpu: record.gpu,
        mode: record.mode,
        cpu: Cpu::Sandbox(cpu),
    };
    let (amd, criu) = match gpu {
        Gpu::Driver => driver_half::amd(&subject.cpu, daemon.criu()?)?,
        Gpu::None | Gpu::Worker { .. } => (Vec::new(), daemon.criu()?.clone()),
    };
    let attempt = Attempt {
        daemon,
        criu,
        subject,
        gpu,
        amd,
        needs_gpu: false,
        wish,
        timeline: &timeline,
        warnings: Mutex::default(),
        served: Mutex::default(),
        reply,
    };
    // One that does not begin leaves no trace.
    let draft = daemon.store.begin(wish.to)?;
    let taken = attempt.make(draft);
    drop(operation);
    if !wish.leave_running && taken.is_ok() {
        timeline.lane(CPU).time("end", || held.wait_end(Some(STOP_LIMIT)));
        // What was stopped is likely to be restored.
        if worker.is_some()
            && let Ok(image) = daemon.store.image(wish.to)
        {
            daemon.pool.prepare(&held.record().gpu, Some(&ImageKey::of(&image)));
            let (caches, path) = (daemon.pool.caches.clone(), image.path().to_path_buf());
            std::thread::spawn(move || caches.fill_host(&path, Priority::Made));
        }
    }
    let stopped_us = taken.as_ref().map_or(0, |taken| taken.stopped_us);
    let taken = tracing.end(held, &timeline, stopped_us, taken)?;
    Ok(attempt.report(&taken))
}

/// Takes an image of a program that was started without us. Unless `mode` asks for the driver, it need not use a GPU.
pub fn checkpoint_pid(
    daemon: &Daemon,
    pid: i32,
    mode: Option<Mode>,
    wish: &Wish<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let timeline = Timeline::begin();
    if mode == Some(Mode::Sandbox) {
        return Err(Error::NotSandboxed { pid });
    }
    if let Some(held) = daemon.sandboxes.all().into_iter().find(|held| held.has(pid)) {
        return Err(Error::InSandbox { pid, name: held.name() });
    }
    // Before it is looked at: one that is being checkpointed has a tracer.
    let _claim = daemon.claims.take(process_tree(pid))?;
    let tree = Tree::find(pid)?;
    let command = process::command(pid);
    let subject = Subject {
        id: format!("pid-{pid}"),
        name: names::stem(&command),
        command,
        gpu: "driver".to_string(),
        mode: Mode::Driver,
        cpu: Cpu::Tree(&tree),
    };
    let needs_gpu = mode == Some(Mode::Driver);
    let (amd, criu) = driver_half::amd(&subject.cpu, daemon.criu()?)?;
    let attempt = Attempt {
        daemon,
        criu,
        subject,
        gpu: Gpu::Driver,
        amd,
        needs_gpu,
        wish,
        timeline: &timeline,
        warnings: Mutex::default(),
        served: Mutex::default(),
        reply,
    };
    let taken = attempt.make(daemon.store.begin(wish.to)?)?;
    Ok(attempt.report(&taken))
}

/// The worker of the one process that uses the GPU, if one does.
pub fn serving_worker(held: &Held) -> Result<Option<std::sync::Arc<Worker>>> {
    if let Some(lost) = held.lost_worker() {
        return Err(Error::WorkerDead { name: held.name(), how: lost.ended().unwrap_or_default() });
    }
    let mut serving: Vec<_> =
        held.live_workers().into_iter().filter(|worker| is_alive(worker.client())).collect();
    if serving.len() > 1 {
        let pids: Vec<String> = serving.iter().map(|worker| worker.client().to_string()).collect();
        return Err(Error::ManyGpuProcesses {
            name: held.name(),
            count: serving.len(),
            pids: pids.join(", "),
        });
    }
    Ok(serving.pop())
}

impl<'a> Attempt<'a> {
    fn make(&self, draft: Draft) -> Result<Taken> {
        fault::point("checkpoint-begun")?;
        self.take(draft)
    }

    fn report(&self, taken: &Taken) -> Report {
        let Subject { name, mode, .. } = &self.subject;
        log::info!("{name:?} is in image {:?}", self.wish.to);
        Report {
            name: name.clone(),
            image: self.wish.to.to_string(),
            mode: *mode,
            container: None,
            gpu_processes: taken.gpu_processes,
            total_us: self.timeline.elapsed_us(),
            stopped_us: taken.stopped_us,
            warnings: self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            phases: self.timeline.phases(),
        }
    }

    fn worker(&self) -> Option<&Worker> {
        match self.gpu {
            Gpu::Worker { worker, .. } => Some(worker),
            Gpu::None | Gpu::Driver => None,
        }
    }

    fn take(&self, draft: Draft) -> Result<Taken> {
        let status = self.worker().map(Worker::status).transpose()?;
        let stopped = Instant::now();
        let mut quiet = match self.gpu {
            Gpu::None | Gpu::Driver => None,
            Gpu::Worker { held, worker } => {
                self.reply.progress("quiesce", 0, 0);
                Some(self.timeline.time("quiesce", || Quiet::begin(held, worker))?)
            }
        };
        fault::point("quiesced")?;
        if let Some(quiet) = &mut quiet {
            let pid = self.client_pid(quiet)?;
            self.timeline.time("detach", || quiet.detach(pid))?;
        }
        let hold = match self.gpu {
            Gpu::Driver => self.hold()?,
            Gpu::None | Gpu::Worker { .. } => None,
        };
        fault::point("detached")?;
        let scratch = Scratch::make(self.daemon.places.dumps().join(&self.subject.id))?;
        // Stays here until it is committed: the worker writes to it until its thread has ended.
        let draft = Mutex::new(Some(draft));
        self.dump(&draft, &scratch.path, quiet.as_ref(), status.as_ref(), hold.as_ref())?;
        let driven = hold.as_ref().map_or(0, |hold| hold.held.pids.len());
        let gpu_processes = usize::from(quiet.is_some()) + driven + self.amd.len();
        match hold {
            Some(hold) if self.wish.leave_running => driver_half::release(hold, self.timeline)?,
            Some(hold) => hold.forget(),
            None => {}
        }
        match quiet {
            Some(quiet) if self.wish.leave_running => self.timeline.time("resume", || quiet.resume())?,
            Some(quiet) => quiet.end(),
            None => {}
        }
        let stopped_us = stopped.elapsed().as_micros() as u64;
        if self.wish.leave_running {
            self.seal(&draft, &scratch.path)?;
        }
        fault::point("committed")?;
        Ok(Taken { stopped_us, gpu_processes })
    }

    fn hold(&self) -> Result<Option<Hold<'a>>> {
        self.reply.progress("gpu", 0, 0);
        let Subject { id, name, cpu, .. } = &self.subject;
        let hold = driver_half::hold(self.daemon, id, cpu, self.wish.gpu_wait, self.timeline)?;
        if hold.is_none() && self.amd.is_empty() && self.needs_gpu {
            return Err(Error::NoGpuProcess { name: name.clone() });
        }
        Ok(hold)
    }

    fn client_pid(&self, quiet: &Quiet<'_>) -> Result<i32> {
        let inside = quiet.client.process as i32;
        self.subject.cpu.host_pid(inside).ok_or_else(|| Error::Worker {
            action: "find the program's process",
            reason: format!("the client says that it is process {inside}, and there is none in the sandbox"),
        })
    }

    /// Has CRIU dump the CPU half while the worker saves the GPU half.
    fn dump(
        &self,
        draft: &Mutex<Option<Draft>>,
        images: &Path,
        quiet: Option<&Quiet<'_>>,
        status: Option<&Status>,
        hold: Option<&Hold<'_>>,
    ) -> Result<()> {
        let path = {
            let draft = draft.lock().unwrap_or_else(PoisonError::into_inner);
            draft.as_ref().ok_or(Error::NoDraft)?.path().to_path_buf()
        };
        self.reply.progress("dump", 0, 0);
        let failure = Mutex::new(None);
        // The first is the cause.
        let fail = |error: Error| {
            let sentence = error.to_string();
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            sentence
        };
        let saved = OnceLock::new();
        let first = self.worker().map(|_| &saved);
        let (server, criu_end) = Pages::begin(self.subject.cpu, images, driver_half::areas(hold), first)?;
        let start_us = self.timeline.elapsed_us();
        let dumped = std::thread::scope(|scope| {
            let mut spec = DumpSpec::new(&self.criu, images, self.wish.leave_running);
            spec.external_sockets = quiet.iter().map(|quiet| quiet.client.socket_inode as u32).collect();
            spec.page_server = Some(criu_end.as_fd());
            let pages = scope.spawn(move || server.serve().map_err(fail));
            let save = self.worker().map(|worker| scope.spawn(|| self.save(worker, &path, Done(&saved))));
            self.subject.cpu.dump(&spec, |frozen| {
                let lost = || "the program's pages were not taken".to_string();
                let served = pages.join().map_err(|_| lost()).flatten()?.ok_or_else(lost)?;
                *self.served.lock().unwrap_or_else(PoisonError::into_inner) = Some(served);
                let gathered = self.gather(frozen, draft, save, quiet, status, hold);
                // A program that is to end does not end before its image is safe.
                let sealed = gathered.and_then(|()| match self.wish.leave_running {
                    true => Ok(()),
                    false => self.seal(draft, images),
                });
                sealed.map_err(fail)
            })
        });
        match dumped {
            Ok(report) => {
                self.note_dump(start_us, &report);
                Ok(())
            }
            Err(error) => {
                self.undo(draft);
                let cause = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(cause.unwrap_or_else(|| self.daemon.places.keep_words(error)))
            }
        }
    }

    fn note_dump(&self, start_us: u64, report: &DumpReport) {
        let micros = |duration: Duration| duration.as_micros() as u64;
        let cpu = self.timeline.lane(CPU);
        let (frozen_us, freezing_us) = (micros(report.until_frozen), report.stats.freezing_us);
        // CRIU says how long freezing took and when all was written, and freezing is what it does first.
        let written = report.stats.pages_written * PAGE;
        cpu.note("freeze", start_us, freezing_us, 0);
        cpu.note("dump", start_us + freezing_us, frozen_us.saturating_sub(freezing_us), written);
        let end_us = frozen_us + micros(report.frozen_step);
        let after = if self.wish.leave_running { "thaw" } else { "stop" };
        cpu.note(after, start_us + end_us, micros(report.total).saturating_sub(end_us), 0);
    }

    /// Leaves nothing of an attempt that failed.
    fn undo(&self, draft: &Mutex<Option<Draft>>) {
        let unfinished = draft.lock().unwrap_or_else(PoisonError::into_inner).take();
        let goes_on = self.subject.cpu.goes_on();
        // An image that was finished before the dump failed is all that is left of a program that ended.
        if unfinished.is_none()
            && goes_on
            && let Err(error) = self.daemon.store.remove(self.wish.to)
        {
            log::error!("the image of a checkpoint that failed stays: {error}");
        }
    }

    /// The pages of the CPU half wait until that is done, however it ends.
    fn save(&self, worker: &Worker, staging: &Path, _done: Done<'_>) -> Result<Vec<Part>> {
        let request = Request::Save { staging: staging.to_string_lossy().into_owned(), leave_memory: false };
        self.saved(worker, GPU, "save the GPU half", &request)
    }

    fn saved(
        &self,
        worker: &Worker,
        lane: &'static str,
        action: &'static str,
        request: &Request,
    ) -> Result<Vec<Part>> {
        let start_us = self.timeline.elapsed_us();
        match worker.ask(action, request, &[], None)? {
            Response::Saved { parts, phases } => {
                self.timeline.lane(lane).merge(start_us, phases);
                parts.into_iter().map(|part| parse_part(action, part)).collect()
            }
            other => Err(Error::Worker { action, reason: format!("it answered {other:?}") }),
        }
    }

    /// The program stands still with its CPU half written: takes all that can only be had now.
    fn gather(
        &self,
        frozen: &Frozen<'_>,
        draft: &Mutex<Option<Draft>>,
        save: Option<ScopedJoinHandle<'_, Result<Vec<Part>>>>,
        quiet: Option<&Quiet<'_>>,
        status: Option<&Status>,
        hold: Option<&Hold<'_>>,
    ) -> Result<()> {
        fault::point("frozen")?;
        let draft = draft.lock().unwrap_or_else(PoisonError::into_inner);
        let draft = draft.as_ref().ok_or(Error::NoDraft)?;
        let parts = self.timeline.lane(CPU).wait("wait for the GPU half", &[GPU], || join(save))?;
        draft.adopt(parts)?;
        fault::point("saved")?;
        if let Some(worker) = self.worker() {
            let request = Request::SavePinned { staging: draft.path().to_string_lossy().into_owned() };
            let pinned = self.saved(worker, PINNED, "save pinned memory", &request)?;
            draft.adopt(pinned)?;
        }
        fault::point("pinned-saved")?;
        self.timeline.time("manifest", || self.describe(frozen, draft, quiet, status, hold))
    }

    /// Makes an image of what was gathered.
    fn seal(&self, draft: &Mutex<Option<Draft>>, images: &Path) -> Result<()> {
        self.reply.progress("commit", 0, 0);
        let mut slot = draft.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(draft) = slot.as_ref() {
            let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
            self.timeline.time("cpu pages", || match (self.subject.mode, &*served) {
                (Mode::Sandbox, _) => self.convert(draft, images),
                // There is no client, by which alone it is safe to map all that can be.
                (Mode::Driver, Some(served)) => cpu_pages::take(draft, images, served),
                (Mode::Driver, None) => Ok(()),
            })?;
            if self.subject.mode == Mode::Sandbox {
                driver_socket::unname(images).map_err(|source| Error::io("rewrite", images, source))?;
            }
            self.timeline.time("cpu files", || take_cpu_files(draft, images))?;
        }
        fault::point("before-commit")?;
        if let Some(draft) = slot.take() {
            self.timeline.time("commit", || draft.commit())?;
        }
        fault::point("in-image")
    }

    /// Has the program's memory mapped from the image on a restore.
    fn convert(&self, draft: &Draft, images: &Path) -> Result<()> {
        let earlier = self.daemon.places.pages().join(&self.subject.id);
        let warnings = cpu_pages::convert(draft, images, &earlier)?;
        for warning in &warnings {
            log::warn!("image {:?}: {warning}", self.wish.to);
        }
        Kept::warn(&mut draft.manifest(), &warnings);
        *self.warnings.lock().unwrap_or_else(PoisonError::into_inner) = warnings;
        Ok(())
    }

    fn describe(
        &self,
        frozen: &Frozen<'_>,
        draft: &Draft,
        quiet: Option<&Quiet<'_>>,
        status: Option<&Status>,
        hold: Option<&Hold<'_>>,
    ) -> Result<()> {
        let Subject { name, command, gpu, mode, cpu, .. } = &self.subject;
        let inventory = frozen.inventory()?;
        let mut manifest = draft.manifest();
        manifest.mode = machine::mode(*mode);
        manifest.program = machine::program(command, cpu);
        manifest.machine = machine::this();
        let driver = hold.map(|hold| DriverHalf::of(hold, cpu));
        manifest.gpus = match &driver {
            Some(half) => half.shown_gpus(),
            None => status.map(machine::gpus).unwrap_or_default(),
        };
        manifest.files = inventory.files.iter().map(machine::mapped_file).collect();
        let kept = Kept {
            name: name.clone(),
            gpu: gpu.clone(),
            inventory,
            client: quiet.map(|quiet| quiet.client.clone()),
            driver,
            amd: self.amd.clone(),
            framework: self.wish.framework,
            container: None,
            warnings: Vec::new(),
        };
        kept.write(&mut manifest)
    }
}

fn join(save: Option<ScopedJoinHandle<'_, Result<Vec<Part>>>>) -> Result<Vec<Part>> {
    match save {
        None => Ok(Vec::new()),
        Some(thread) => thread.join().unwrap_or_else(|_| {
            Err(Error::Worker {
                action: "save the GPU half",
                reason: "the thread that asked panicked".into(),
            })
        }),
    }
}

pub fn parse_part(action: &'static str, part: serde_json::Value) -> Result<Part> {
    serde_json::from_value(part).map_err(|error| Error::Worker {
        action,
        reason: format!("it described a part that is none: {error}"),
    })
}

/// Moves CRIU's images into the draft. Its log and statistics stay: they are no part of the program.
fn take_cpu_files(draft: &Draft, images: &Path) -> Result<()> {
    let failed = |source| Error::io("list", images, source);
    for entry in std::fs::read_dir(images).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_file() && name.ends_with(".img") {
            draft.take_file(PartKind::CpuFile, &name, &path)?;
        }
    }
    Ok(())
}

/// Says when it goes that something is done.
struct Done<'a>(&'a OnceLock<()>);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let _ = self.0.set(());
    }
}

/// A directory for the time of a dump.
pub struct Scratch {
    pub path: PathBuf,
}

impl Scratch {
    pub fn make(path: PathBuf) -> Result<Scratch> {
        private_directory(&path, true)?;
        Ok(Scratch { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            log::warn!("{} stays: {error}", self.path.display());
        }
    }
}
