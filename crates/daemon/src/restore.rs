//! Bringing the program of an image back in a new sandbox.
//!
//! ```text
//! checks ─▶ run directory, gate, files ─┬─ worker: GPU check, Restore ─┬─ Adopt ─▶ program runs ─ Resume
//!                                       │           └─ buffers loading ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▶ Loaded
//!                                       ├─ pinned files loaded ────────┤
//!                                       └─ CPU files checked ─ CRIU ───┘
//! ```
//!
//! The program is complete and not yet running when both halves meet, so that none of its threads can see memory that
//! is not there yet; what is on the GPU it cannot see, so contents of buffers may come later ([`loading`]). Whatever
//! fails, all that was taken is given back.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use rekindle_driver::UuidPair;
use rekindle_protocol::client::Quiesced;
use rekindle_protocol::daemon::{LoadOrder, Mode, Operation, Report, State};
use rekindle_protocol::worker::{Request, Response};
use rekindle_sandbox::{ExternalSocket, RestoreReport, RestoreSpec, Restored, Sandbox, autobound};
use rekindle_store::{Image, PartKind};

use crate::caches::Loan;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::framework::App;
use crate::gate::Gate;
use crate::held::Held;
use crate::kept::Kept;
use crate::loading::{self, Rest};
use crate::record::Record;
use crate::replacement::Left;
use crate::reply::Reply;
use crate::run::{create, give_back, new_id};
use crate::timeline::{CPU, GPU, PINNED, Timeline};
use crate::traces::Tracing;
use crate::worker::Worker;
use crate::worker_pool::ImageKey;
use crate::{
    clock, container, cpu_pages, driver_half, fault, framework, gpu, load_order, machine, names, preflight,
};

/// How long CRIU may take.
const CRIU_LIMIT: Duration = Duration::from_secs(120);
/// Pinned memory is loaded in pieces of this size.
const PIECE: u64 = 8 << 20;

/// What the user asks for.
pub struct Wish<'a> {
    pub image: &'a str,
    pub name: Option<&'a str>,
    pub gpu: Option<&'a str>,
    pub gpu_map: &'a [String],
    /// What the image's program is to become, which waits for that.
    pub app: Option<&'a App>,
    pub order: LoadOrder,
    /// Note which buffers requests name first.
    pub record: bool,
}

pub struct Attempt<'a> {
    pub daemon: &'a Daemon,
    pub held: &'a Arc<Held>,
    pub image: &'a Image,
    pub kept: &'a Kept,
    /// Onto which GPUs the driver brings its half back.
    pub pairs: &'a [UuidPair],
    pub timeline: &'a Timeline,
    pub wish: &'a Wish<'a>,
}

/// A GPU half in its place, but for contents.
pub struct GpuHalf {
    /// On the restore's clock.
    pub began_us: u64,
    /// What it reads from caches.
    pub loan: Loan,
    pub journal: OwnedFd,
}

/// Returns when the program runs.
pub fn restore(daemon: &Daemon, wish: &Wish<'_>, reply: &Reply<'_>) -> Result<Report> {
    let (timeline, tracing) = (Timeline::begin(), Tracing::begin(Operation::Restore, wish.image));
    reply.progress("check", 0, 0);
    let image = daemon.store.image(wish.image)?;
    let kept = Kept::read(&image)?;
    if wish.app.is_some() && !kept.framework {
        return Err(Error::NoFramework { image: wish.image.to_string() });
    }
    if let Some(of) = &kept.container {
        return container::restore(daemon, &image, &kept, of, wish, reply);
    }
    let mode = machine::shown_mode(image.manifest().mode);
    let gpu = match mode {
        Mode::Sandbox => gpu::choose(Some(wish.gpu.unwrap_or(&kept.gpu)))?,
        Mode::Driver => kept.gpu.clone(),
    };
    let pairs = timeline.time("checks", || {
        daemon.criu()?;
        preflight::check_machine(&daemon.places, &image, &kept)?;
        driver_half::check(daemon, &image, &kept, wish.gpu_map)
    })?;
    fault::point("restore-checked")?;
    let held = timeline.time("places", || hold(daemon, &image, &kept, wish, gpu, mode))?;
    let attempt =
        Attempt { daemon, held: &held, image: &image, kept: &kept, pairs: &pairs, timeline: &timeline, wish };
    reply.progress("restore", 0, 0);
    let brought_back = attempt
        .bring_back()
        .and_then(|rest| wish.app.map_or(Ok(()), |app| attempt.hand_over(app)).map(|()| rest))
        .and_then(|rest| held.is_up().map(|()| rest));
    let rest = match brought_back {
        Ok(rest) => rest,
        Err(error) => {
            held.fill_pool();
            give_back(daemon, &held);
            return Err(error);
        }
    };
    tracing.end(&held, &timeline, timeline.elapsed_us(), Ok(()))?;
    loading::follow(&held, &image, rest, timeline.elapsed_us());
    log::info!("image {:?} runs as sandbox {:?}", image.manifest().name, held.name());
    let total_us = timeline.elapsed_us();
    Ok(Report {
        name: held.name(),
        image: image.manifest().name.clone(),
        mode,
        container: None,
        gpu_processes: kept
            .driver
            .as_ref()
            .map_or(usize::from(kept.client.is_some()), |half| half.pids.len())
            + kept.amd.len(),
        total_us,
        stopped_us: total_us,
        warnings: kept.warnings.clone(),
        phases: timeline.phases(),
    })
}

/// Reserves a name and makes the new sandbox's places. Without a name given it is that of the old sandbox, if free.
fn hold(
    daemon: &Daemon,
    image: &Image,
    kept: &Kept,
    wish: &Wish<'_>,
    gpu: String,
    mode: Mode,
) -> Result<Arc<Held>> {
    let old_is_free = daemon.sandboxes.get(&kept.name).is_ok_and(|held| !held.is_live())
        || matches!(daemon.sandboxes.get(&kept.name), Err(Error::UnknownSandbox { .. }));
    let old = Some(kept.name.as_str()).filter(|name| old_is_free && names::check(name).is_ok());
    let program = &image.manifest().program;
    let (name, stem, command, directory) = match wish.app {
        Some(app) => (wish.name, names::stem(&app.argv), app.argv.clone(), app.directory.clone()),
        None => {
            let directory = program.cwd.to_string_lossy().into_owned();
            (wish.name.or(old), kept.name.clone(), program.argv.clone(), directory)
        }
    };
    daemon.sandboxes.add(name, &stem, |name| {
        let record = Record {
            id: new_id()?,
            name,
            mode,
            device: false,
            state: State::Restoring,
            pid: 0,
            command,
            directory,
            gpu,
            started: clock::now(),
            ended: None,
            exit_code: None,
            image: Some(image.manifest().name.clone()),
            problem: None,
            workers: Vec::new(),
            asleep: None,
        };
        create(daemon, record)
    })
}

impl Attempt<'_> {
    /// Returns what is still to come of the GPU half.
    fn bring_back(&self) -> Result<Option<Rest>> {
        fault::point("restore-created")?;
        if self.kept.framework {
            framework::open(&self.held.run_directory)?;
        }
        if self.held.record().mode == Mode::Driver {
            return self.bring_back_by_driver().map(|()| None);
        }
        Gate::open(self.held)?;
        let worker =
            self.held.start_worker(self.kept.client.as_ref().map(|_| ImageKey::of(self.image)).as_ref())?;
        let Some(client) = &self.kept.client else {
            let cpu = self.restore_cpu(&[], |_| fault::point("restore-complete"))?;
            self.held.runs(cpu)?;
            return fault::point("restore-running").inspect_err(|_| self.end_program()).map(|()| None);
        };
        self.make_files(client)?;
        let (cpu, gpu, (worker_end, adopted)) = self.both_halves(client, &worker)?;
        let GpuHalf { began_us, loan, journal } = gpu;
        let pid = cpu.host_pid(client.process as i32).unwrap_or(0);
        worker.set_client(pid);
        self.held.runs(cpu)?;
        let resume = Request::Resume { restored: true, driver_attached: false };
        self.held.note_workers();
        self.timeline
            .time("resume", || worker.command("let the program's GPU work go on", &resume, &[]))
            .and_then(|()| fault::point("restore-running"))
            .inspect_err(|_| self.end_program())?;
        let left = Left { client: worker_end, journal, pid: adopted };
        Ok(Some(Rest { worker, began_us, loan, left }))
    }

    fn hand_over(&self, app: &App) -> Result<()> {
        self.timeline
            .time("hand over", || framework::hand_over(self.held, app))
            .inspect_err(|_| self.end_program())
    }

    fn bring_back_by_driver(&self) -> Result<()> {
        let cpu = self.restore_cpu(&[], |_| fault::point("restore-complete"))?;
        self.held.runs(cpu)?;
        self.attach_driver().and_then(|()| fault::point("restore-running")).inspect_err(|_| {
            self.end_program();
            self.daemon.driver.abandon(&self.held.id);
        })
    }

    /// The program runs, and its calls to the driver wait until this is done.
    fn attach_driver(&self) -> Result<()> {
        let Some(half) = &self.kept.driver else { return Ok(()) };
        let cpu = self.held.cpu("brought back")?;
        half.bring_back(self.daemon, &self.held.id, cpu, self.pairs, self.timeline)
    }

    /// Restores the GPU half and the CPU half side by side, up to where the program could run. Also returns the worker's
    /// end of the client's socket, and the client's pid as the worker sees it.
    fn both_halves(
        &self,
        client: &Quiesced,
        worker: &Worker,
    ) -> Result<(Sandbox, GpuHalf, (UnixStream, i32))> {
        let (client_end, worker_end) =
            UnixStream::pair().map_err(|source| Error::system("make a pair of sockets", source))?;
        let sockets = [ExternalSocket { inode: client.socket_inode as u32, socket: client_end.as_fd() }];
        std::thread::scope(|scope| {
            let gpu = scope.spawn(|| self.restore_gpu(worker));
            let pinned = scope.spawn(|| self.timeline.lane(PINNED).time("load", || self.load_pinned(client)));
            let (mut half, mut adopted) = (None, 0);
            let cpu = self.restore_cpu(&sockets, |restored| {
                let cpu = self.timeline.lane(CPU);
                half = Some(cpu.wait("wait for the other half", &[GPU, PINNED], || {
                    join(pinned).and_then(|()| join(gpu))
                })?);
                fault::point("restore-complete")?;
                let pid = restored.pids().get(&(client.process as i32)).copied();
                let pid =
                    pid.ok_or_else(|| self.refused("the process that used the GPU did not come back"))?;
                adopted = pid;
                let adopt = Request::Adopt { pid, driver_attached: false };
                worker.command("take the program over", &adopt, &[worker_end.as_fd()])
            })?;
            let half = half.ok_or_else(|| self.refused("CRIU brought it back and did not say so"))?;
            Ok((cpu, half, (worker_end, adopted)))
        })
    }

    /// The program does not run before this has worked, so that the GPU may be checked beside CRIU's work.
    pub fn restore_gpu(&self, worker: &Worker) -> Result<GpuHalf> {
        let status = self.timeline.lane(GPU).time("worker start", || worker.status())?;
        let (caches, gpu) = (self.held.caches(), self.held.record().gpu);
        let let_go = || self.held.end_prepared();
        let status = caches.make_room(worker, &gpu, self.image.manifest().sizes.gpu, status, let_go)?;
        preflight::check_gpus(self.image, &status)?;
        let began_us = self.timeline.elapsed_us();
        let journal = load_order::tell(worker, self.image, self.wish.order, self.wish.record)?;
        let loan = caches.lend(self.image, &gpu);
        let cached = loan.hand_to(worker, false)?;
        let action = "restore the GPU half";
        let request = Request::Restore {
            image: self.image.path().to_string_lossy().into_owned(),
            run_directory: self.held.run_directory.to_string_lossy().into_owned(),
            cached,
        };
        match worker.ask(action, &request, &[], None)? {
            Response::Restored { phases } => {
                self.timeline.lane(GPU).merge(began_us, phases);
                Ok(GpuHalf { began_us, loan, journal })
            }
            other => Err(Error::Worker { action, reason: format!("it answered {other:?}") }),
        }
    }

    fn restore_cpu(
        &self,
        sockets: &[ExternalSocket<'_>],
        before_resume: impl FnOnce(&Restored) -> Result<()>,
    ) -> Result<Sandbox> {
        let cpu = self.timeline.lane(CPU);
        let checked = cpu.time("check files", || self.check_cpu_files())?;
        let own = self.held.pages.with_extension("images");
        let mut names = autobound::settle(&checked, &own)
            .map_err(|source| Error::io("give other names to sockets in", &own, source))?;
        let images = names.as_ref().map_or(&*checked, |names| names.images(&checked)).to_path_buf();
        cpu.time("link pages", || cpu_pages::link(self.image, &self.held.pages, available_threads()))?;
        let sockets = sockets
            .iter()
            .map(|socket| ExternalSocket { inode: socket.inode, socket: socket.socket })
            .collect();
        let criu = match self.kept.amd.is_empty() {
            true => self.daemon.criu()?.clone(),
            false => {
                driver_half::amd_criu(self.daemon.criu()?, || "the image has an AMD GPU half".to_string())?
            }
        };
        let spec = RestoreSpec {
            sandbox: self.held.place(),
            criu: &criu,
            images_dir: &images,
            inventory: Some(&self.kept.inventory),
            sockets,
            timeout: CRIU_LIMIT,
        };
        let failure = Mutex::new(None);
        let start_us = self.timeline.elapsed_us();
        let restored = Sandbox::restore(&spec, |restored| {
            if let Some(names) = &mut names {
                names.bound();
            }
            before_resume(restored).map_err(|error| {
                let sentence = error.to_string();
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                sentence
            })
        });
        match restored {
            Ok((cpu, report)) => {
                self.note_restore(start_us, &report);
                Ok(cpu)
            }
            Err(error) => {
                let cause = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(cause.unwrap_or_else(|| self.daemon.places.keep_words(error)))
            }
        }
    }

    fn note_restore(&self, start_us: u64, report: &RestoreReport) {
        let micros = |duration: Duration| duration.as_micros() as u64;
        let cpu = self.timeline.lane(CPU);
        cpu.note("namespaces", start_us, micros(report.namespaces), 0);
        let criu_us = start_us + micros(report.namespaces);
        let mut step_us = 0;
        for step in &report.steps {
            let name = format!("criu to {}", step.name);
            cpu.note(&name, criu_us + step_us, step.at_us.saturating_sub(step_us), 0);
            step_us = step.at_us;
        }
        let end_us = micros(report.until_restored + report.restored_step);
        // CRIU's clock began when it was asked, which its last step so far tells.
        let asked_us = micros(report.until_restored).saturating_sub(step_us);
        let mut done_us = end_us;
        for step in &report.last_steps {
            let (name, at_us) = (format!("criu to {}", step.name), asked_us + step.at_us);
            cpu.note(&name, criu_us + done_us, at_us.saturating_sub(done_us), 0);
            done_us = done_us.max(at_us);
        }
        let left = micros(report.total).saturating_sub(micros(report.namespaces) + done_us);
        cpu.note("criu lets go", criu_us + done_us, left, 0);
    }

    /// CRIU reads its files in place: they are checked whole before it does.
    fn check_cpu_files(&self) -> Result<PathBuf> {
        let parts: Vec<_> = self.image.parts(PartKind::CpuFile).collect();
        self.image.check_parts(&parts, available_threads())?;
        let file = parts.last().and_then(|part| self.image.file_path(part));
        let directory = file.and_then(|path| path.parent().map(Path::to_path_buf));
        directory.ok_or_else(|| self.refused("its CPU half does not lie in files of its own"))
    }

    /// Makes the board, ring and pinned files that the program had mapped, all zero.
    pub fn make_files(&self, client: &Quiesced) -> Result<()> {
        for (name, bytes) in &client.files {
            let path = self.held.run_directory.join(name);
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .and_then(|file| file.set_len(*bytes))
                .map_err(|source| Error::io("make", &path, source))?;
        }
        Ok(())
    }

    pub fn load_pinned(&self, client: &Quiesced) -> Result<()> {
        for part in self.image.parts(PartKind::Pinned) {
            if !client.files.iter().any(|(name, bytes)| *name == part.name && *bytes >= part.bytes) {
                return Err(self.refused("it has pinned memory that no file of the program is for"));
            }
            let path = self.held.run_directory.join(&part.name);
            let failed = |source| Error::io("write", &path, source);
            let file: File = OpenOptions::new().write(true).open(&path).map_err(failed)?;
            let mut piece = Vec::new();
            for at in (0..part.bytes).step_by(PIECE as usize) {
                piece.resize(PIECE.min(part.bytes - at) as usize, 0);
                self.image.read_part(part, at, &mut piece)?;
                file.write_all_at(&piece, at).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn refused(&self, reason: &str) -> Error {
        Error::CannotRestore { image: self.image.manifest().name.clone(), reason: reason.to_string() }
    }

    fn end_program(&self) {
        if let Ok(cpu) = self.held.cpu("ended")
            && let Err(error) = cpu.kill()
        {
            log::error!("a program that could not be restored was not ended: {error}");
        }
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| {
        Err(Error::Worker { action: "restore the GPU half", reason: "the thread that asked panicked".into() })
    })
}

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}
