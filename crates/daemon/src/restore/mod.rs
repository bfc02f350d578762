//! Bringing the program of an image back in a new sandbox.
//!
//! ```text
//! checks ─▶ run directory, gate, files ─┬─ worker: GPU check, Restore ─┬─ Adopt ─▶ program runs ─ Resume
//!                                       │           └─ buffers loading ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▶ Loaded
//!                                       ├─ pinned files loaded ────────┤
//!                                       ├─ sandbox made ───────────────┤
//!                                       └─ CPU files checked ─ CRIU ───┘
//! ```
//!
//! The program is complete and not yet running when both halves meet, so that none of its threads can see memory that
//! is not there yet; what is on the GPU it cannot see, so contents of buffers may come later ([`loading`]). Whatever
//! fails, all that was taken is given back.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

use rekindle_driver::UuidPair;
use rekindle_protocol::client::Quiesced;
use rekindle_protocol::daemon::{LoadOrder, Mode, Operation, Report, State};
use rekindle_protocol::worker::{Request, Response};
use rekindle_sandbox::{ExternalSocket, Sandbox};
use rekindle_store::Image;

use crate::caches::Loan;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::frameworks::App;
use crate::host::gpu;
use crate::images::description::Kept;
use crate::images::page_check::{First, Mapped};
use crate::images::{driver_half, machine, page_check, preflight, soundness};
use crate::lifecycle::run::{create, give_back};
use crate::pool::ImageKey;
use crate::reply::Reply;
use crate::restore::loading::{Clock, Rest};
use crate::restore::replacement::Left;
use crate::sandboxes::Held;
use crate::sandboxes::gate::Gate;
use crate::sandboxes::members::Roll;
use crate::sandboxes::names;
use crate::sandboxes::record::Record;
use crate::sandboxes::traces::Tracing;
use crate::timeline::{CPU, GPU, PINNED, Timeline};
use crate::workers::Worker;
use crate::{containers, fault, frameworks};

mod cpu;
pub mod load_order;
pub mod loading;
pub mod proof;
pub mod replacement;
mod shared_files;
pub mod unwritten;

/// What is done to a program here.
const RESTORED: &str = "restored";
/// So often a restore begins, if a worker ends before the program runs, or one that was made ready for another image
/// turns out to be of no use for this one.
const MOST_TRIES: u32 = 2;

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
    /// Read all of the image before.
    pub verify: bool,
    /// A pipe for the program's standard input, if that was one before.
    pub input: Option<OwnedFd>,
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
    /// What the program does not have as it had it.
    pub warnings: Mutex<Vec<String>>,
    /// Whether it is brought to where it could run, beside the program that it was taken of.
    pub is_proof: bool,
    /// What its program maps, once that was looked at.
    pub mapped: Mutex<Vec<Mapped>>,
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
    if wish.verify {
        timeline.time("verify", || page_check::verify(&daemon.store, &image, reply))?;
    }
    let damaged_advice = image.damaged_advice();
    let kept = Kept::read(&image)?;
    if wish.app.is_some() && !kept.framework {
        return Err(Error::NoFramework { image: wish.image.to_string() });
    }
    if let Some(of) = &kept.container {
        return containers::restore(daemon, &image, &kept, of, wish, reply);
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
    timeline.time("check", || soundness::check(&image, available_threads()))?;
    fault::point("restore-checked")?;
    reply.progress("restore", 0, 0);
    let mut tries = 0;
    let (held, rest, mapped, warnings) = loop {
        let held = timeline.time("places", || hold(daemon, &image, &kept, wish, gpu.clone(), mode))?;
        let attempt = Attempt {
            daemon,
            held: &held,
            image: &image,
            kept: &kept,
            pairs: &pairs,
            timeline: &timeline,
            wish,
            warnings: Mutex::new(kept.warnings.clone()),
            is_proof: false,
            mapped: Mutex::default(),
        };
        let brought_back = attempt
            .bring_back(tries == 0)
            .and_then(|rest| wish.app.map_or(Ok(()), |app| attempt.hand_over(app)).map(|()| rest))
            .and_then(|rest| held.is_up().map(|()| rest));
        let mapped = attempt.take_mapped();
        let error = match brought_back {
            Ok(rest) => {
                let warnings = attempt.warnings.into_inner().unwrap_or_else(PoisonError::into_inner);
                break (held, rest, mapped, warnings);
            }
            Err(error) => error,
        };
        tries += 1;
        let never_ran = held.record().pid == 0;
        held.fill_pool();
        give_back(daemon, &held);
        match error {
            Error::WorkerEnded { .. } | Error::UnfitWorker { .. } if never_ran && tries < MOST_TRIES => {
                log::warn!("{error}; the restore begins again with another worker");
            }
            _ => return Err(error),
        }
    };
    tracing.end(&held, &timeline, timeline.elapsed_us(), Ok(()))?;
    let clock = Clock::at(timeline.elapsed_us());
    let pid = rest.as_ref().map_or(0, |rest| rest.left.pid);
    let first = First { runs: image.first_pages().unwrap_or_default().runs, pid };
    page_check::follow(&held, mapped, first, Some(clock));
    loading::follow(&held, &image, rest, clock);
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
        warnings: [warnings, damaged_advice].concat(),
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
    daemon.sandboxes.add(name, &stem, |name, former| {
        let record = Record {
            command,
            directory,
            image: Some(image.manifest().name.clone()),
            ..Record::new(daemon.places.new_id()?, name, mode, State::Restoring, gpu)
        };
        // An app from a framework image is a program of its own.
        create(daemon, record, former.filter(|_| wish.app.is_none()))
    })
}

impl Attempt<'_> {
    /// Returns what is still to come of the GPU half. With `or_alike` its worker may be one that was made ready for another
    /// image.
    fn bring_back(&self, or_alike: bool) -> Result<Option<Rest>> {
        fault::point("restore-created")?;
        if self.kept.framework {
            frameworks::open(&self.held.run_directory)?;
        }
        if self.held.record().mode == Mode::Driver {
            return self.bring_back_by_driver().map(|()| None);
        }
        Gate::open(self.held)?;
        let key = self.kept.client.as_ref().map(|_| ImageKey::of(self.image));
        let worker = self.timeline.time("take a worker", || self.held.take_worker(key.as_ref(), or_alike))?;
        let Some(client) = &self.kept.client else {
            self.held.note_workers();
            let cpu = self.restore_cpu(&[], |_| fault::point("restore-complete"))?;
            self.held.runs(cpu)?;
            return fault::point("restore-running").inspect_err(|_| self.end_program()).map(|()| None);
        };
        self.make_files(client)?;
        let (cpu, gpu, (worker_end, adopted)) = self.both_halves(client, &worker)?;
        let GpuHalf { began_us, loan, journal } = gpu;
        let pid = cpu.host_pid(client.process as i32).unwrap_or(0);
        worker.set_followed(true);
        worker.set_client(pid);
        self.held.runs(cpu)?;
        let resume = Request::Resume { restored: true, driver_attached: false };
        self.held.note_workers();
        self.timeline
            .time("resume", || worker.command("let the program's GPU work go on", &resume, &[]))
            .map_err(|error| loading::cause(&worker, error))
            .and_then(|()| fault::point("restore-running"))
            .map_err(|error| self.held.explain(error, RESTORED))
            .inspect_err(|_| self.end_program())?;
        let left = Left { client: worker_end, journal, pid: adopted };
        Ok(Some(Rest { worker, began_us, loan, left }))
    }

    fn hand_over(&self, app: &App) -> Result<()> {
        self.timeline
            .time("hand over", || frameworks::hand_over(self.held, app))
            .map_err(|error| self.held.explain(error, RESTORED))
            .inspect_err(|_| self.end_program())
    }

    fn bring_back_by_driver(&self) -> Result<()> {
        let mut roll = None;
        let cpu = self.restore_cpu(&[], |restored| {
            // Before they run: one that ends before it is the driver's turn is missed then.
            let pids = self.kept.driver.iter().flat_map(|half| &half.pids);
            let all = restored.pids();
            roll = Some(Roll::call(RESTORED, pids.filter_map(|pid| all.get(pid).copied())));
            fault::point("restore-complete")
        })?;
        self.held.runs(cpu)?;
        let explain = |error| match &roll {
            Some(roll) => roll.explain(error),
            None => error,
        };
        let attached = self.attach_driver().map_err(explain);
        attached.and_then(|()| fault::point("restore-running")).inspect_err(|_| {
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
            let pinned = scope.spawn(|| {
                // The next daemon is to find the worker before the program can.
                self.held.note_workers();
                self.timeline.lane(PINNED).time("load", || self.load_pinned(client))
            });
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
                let taken = worker.command("take the program over", &adopt, &[worker_end.as_fd()]);
                taken.map_err(|error| loading::cause(worker, error))?;
                fault::point("restore-adopted")
            })?;
            let half = half.ok_or_else(|| self.refused("CRIU brought it back and did not say so"))?;
            Ok((cpu, half, (worker_end, adopted)))
        })
    }

    /// The program does not run before this has worked, so that the GPU may be checked beside CRIU's work.
    pub fn restore_gpu(&self, worker: &Worker) -> Result<GpuHalf> {
        let status = self.timeline.lane(GPU).time("worker start", || worker.first_status())?;
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
        let answer = worker.ask(action, &request, &[], None).map_err(|error| worker.refusal(error))?;
        match answer {
            Response::Restored { phases } => {
                self.timeline.lane(GPU).merge(began_us, phases);
                Ok(GpuHalf { began_us, loan, journal })
            }
            other => Err(Error::Worker { action, reason: format!("it answered {other:?}") }),
        }
    }

    fn take_mapped(&self) -> Vec<Mapped> {
        std::mem::take(&mut *self.mapped.lock().unwrap_or_else(PoisonError::into_inner))
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
    let panicked =
        || Error::system("restore", std::io::Error::other("one of the threads that do it panicked"));
    thread.join().unwrap_or_else(|_| Err(panicked()))
}

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}
