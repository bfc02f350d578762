//! Bringing the program of an image back in a new sandbox.
//!
//! ```text
//! checks ─▶ run directory, socket, files┬─ workers: GPU check, Restore ┬─ Adopt ─▶ program runs ─ Resume
//!                                       │           └─ buffers loading ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▶ Loaded
//!                                       ├─ pinned files loaded ────────┤
//!                                       ├─ sandbox made ───────────────┤
//!                                       └─ CPU files checked ─ CRIU ───┘
//! ```
//!
//! Each process that used a GPU has a [half](halves) there, in a worker of its own. The program is complete and not yet
//! running when all meet, so that none of its threads can see memory that
//! is not there yet; what is on the GPU it cannot see, so contents of buffers may come later ([`loading`]). Whatever
//! fails, all that was taken is given back.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

use rekindle_driver::UuidPair;
use rekindle_protocol::daemon::{Limits, LoadOrder, Mode, Operation, Report, State};
use rekindle_protocol::mounts::{Mounts, Volume};
use rekindle_protocol::network::{Network, Port};
use rekindle_protocol::service_name::ServiceName;
use rekindle_store::Image;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::frameworks::{App, FrameworkError};
use crate::host::{gpu, mounts};
use crate::images::metadata::ImageMetadata;
use crate::images::verify;
use crate::images::verify::cpu_half;
use crate::images::verify::page_files::{First, Mapped};
use crate::images::{ImageError, driver_half, machine, preflight};
use crate::lifecycle::run::{create, give_back};
use crate::lifecycle::{LifecycleError, portions, slices};
use crate::reply::Reply;
use crate::restore::loading::PendingLoad;
use crate::sandboxes::admission::AdmissionSocket;
use crate::sandboxes::members::Members;
use crate::sandboxes::names;
use crate::sandboxes::record::Record;
use crate::sandboxes::recovery::Recovery;
use crate::sandboxes::traces::Tracing;
use crate::sandboxes::{Sandbox, SandboxError};
use crate::sleep::wake;
use crate::timeline::{CPU, Clock, Timeline};
use crate::workers::WorkerError;
use crate::workers::gpu_half;
use crate::{fault, frameworks, network};

mod cpu;
mod error;
pub mod halves;
pub mod load_order;
pub mod loading;
pub mod mapped;
pub mod mending;
pub mod proof;
pub mod replacement;
mod shared_files;
pub mod unwritten;

pub use error::RestoreError;

/// What is done to a program here.
const RESTORED: &str = "restored";
/// So often a restore begins, if a worker ends before the program runs.
const MOST_TRIES: u32 = 2;

/// What the user asks for.
#[derive(Default)]
pub struct RestoreRequest<'a> {
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
    /// What it is to have in place of what the image has.
    pub network: Option<Network>,
    pub publish: &'a [Port],
    pub limits: Limits,
    /// Volumes in place of the image's at the same paths, and others.
    pub volumes: &'a [Volume],
    /// A pipe for the program's standard input, if that was one before.
    pub input: Option<OwnedFd>,
    /// How it is brought back after a failure.
    pub recovery: Option<Recovery>,
    /// Whose programs it is to share contexts with; none: nobody's.
    pub tenant: Option<&'a str>,
    /// The service that it is an instance of. It has a network of its own then, to which no port leads.
    pub service: Option<&'a ServiceName>,
    /// Asked when the program is complete, and does not run before this lets it.
    pub ready_check: Option<&'a ReadyCheck<'a>>,
}

pub type ReadyCheck<'a> = dyn Fn(&Arc<Sandbox>) -> Result<()> + Sync + 'a;

pub struct Attempt<'a> {
    pub daemon: &'a Daemon,
    pub sandbox: &'a Arc<Sandbox>,
    pub image: &'a Image,
    pub metadata: &'a ImageMetadata,
    /// Onto which GPUs the driver brings its half back.
    pub pairs: &'a [UuidPair],
    pub timeline: &'a Timeline,
    pub request: &'a RestoreRequest<'a>,
    /// What the program does not have as it had it.
    pub warnings: Mutex<Vec<String>>,
    /// Whether it is brought to where it could run, beside the program that it was taken of.
    pub is_proof: bool,
    /// What its program maps, once that was looked at.
    pub mapped: Mutex<Vec<Mapped>>,
}

/// An image that is to be restored, and when that began.
pub struct OpenedImage {
    pub image: Image,
    pub metadata: ImageMetadata,
    timeline: Timeline,
    tracing: Tracing,
    damaged_advice: Vec<String>,
}

/// Opens the image, and reads all of it if that is asked for.
pub fn open(daemon: &Daemon, request: &RestoreRequest<'_>, reply: &Reply<'_>) -> Result<OpenedImage> {
    let (timeline, tracing) = (Timeline::begin(), Tracing::begin(Operation::Restore, request.image));
    reply.progress("check", 0, 0);
    let image = daemon.store.image(request.image)?;
    if request.verify {
        timeline.time("verify", || verify::whole(&daemon.store, &image, reply))?;
    }
    let damaged_advice = image.damaged_advice();
    let metadata = ImageMetadata::read(&image)?;
    if request.app.is_some() && !metadata.framework {
        return Err(FrameworkError::NoFramework { image: request.image.to_string() }.into());
    }
    Ok(OpenedImage { image, metadata, timeline, tracing, damaged_advice })
}

/// Returns when the program runs.
pub fn restore(
    daemon: &Daemon,
    opened: OpenedImage,
    request: &RestoreRequest<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let OpenedImage { image, metadata, timeline, tracing, damaged_advice } = opened;
    let place = match request.service {
        Some(_) => (Network::Private, Vec::new()),
        None => network::choose(request.network, request.publish, (metadata.network, &metadata.ports))?,
    };
    let mounts = mounts::choose(&metadata.mounts, request.volumes)?;
    let mode = machine::shown_mode(image.manifest().mode);
    let gpu = match mode {
        Mode::Sandbox => gpu::choose(Some(request.gpu.unwrap_or(&metadata.gpu)))?,
        Mode::Driver => metadata.gpu.clone(),
    };
    match (request.tenant, mode) {
        (None, _) => {}
        (Some(tenant), Mode::Sandbox) => slices::check(tenant, request.image, &metadata)?,
        (Some(_), Mode::Driver) => return Err(LifecycleError::OwnContext.into()),
    }
    portions::check(&request.limits, request.tenant, mode)?;
    let pairs = std::thread::scope(|scope| {
        let look = || timeline.lane(CPU).time("check", || cpu_half::check(&image, available_threads()));
        let files = scope.spawn(look);
        let pairs = timeline.time("checks", || {
            daemon.criu()?;
            preflight::check_machine(&daemon.paths, &image, &metadata, &mounts)?;
            driver_half::check(&daemon.driver, || daemon.criu(), &image, &metadata, request.gpu_map)
        });
        let checked = files.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // What the machine lacks is told first.
        pairs.and_then(|pairs| checked.map(|_| pairs))
    })?;
    let overtaken = preflight::overtaken(&metadata, &mounts);
    overtaken.iter().for_each(|warning| log::warn!("image {:?}: {warning}", image.manifest().name));
    fault::point("restore-checked")?;
    reply.progress("restore", 0, 0);
    let load = daemon.pool.begin_load();
    let mut tries = 0;
    let (sandbox, pending, mapped, warnings) = loop {
        let sandbox = timeline.time("places", || {
            hold(daemon, &image, &metadata, request, (gpu.clone(), mode), &place, &mounts)
        })?;
        let attempt = Attempt {
            daemon,
            sandbox: &sandbox,
            image: &image,
            metadata: &metadata,
            pairs: &pairs,
            timeline: &timeline,
            request,
            warnings: Mutex::new(metadata.warnings.iter().chain(&overtaken).cloned().collect()),
            is_proof: false,
            mapped: Mutex::default(),
        };
        let brought_back = attempt
            .bring_back()
            .and_then(|pending| request.app.map_or(Ok(()), |app| attempt.hand_over(app)).map(|()| pending))
            .and_then(|pending| sandbox.is_up().map(|()| pending));
        let mapped = attempt.take_mapped();
        let error = match brought_back {
            Ok(pending) => {
                let warnings = attempt.warnings.into_inner().unwrap_or_else(PoisonError::into_inner);
                break (sandbox, pending, mapped, warnings);
            }
            Err(error) => error,
        };
        tries += 1;
        let never_ran = sandbox.record().pid == 0;
        give_back(daemon, &sandbox);
        match error {
            Error::Workers(WorkerError::Ended { .. }) if never_ran && tries < MOST_TRIES => {
                log::warn!("{error}; the restore begins again with another worker");
            }
            _ => {
                tracing.failed();
                return Err(error);
            }
        }
    };
    tracing.end(&sandbox, &timeline, timeline.elapsed_us(), Ok(()))?;
    let clock = Clock::at(timeline.elapsed_us());
    let pid = pending.first().map_or(0, |pending| pending.recovery.pid);
    let first = First { runs: image.first_pages().unwrap_or_default().runs, pid };
    mapped::follow(&sandbox, mapped, first, Some(clock));
    loading::follow(&sandbox, &image, pending, load, clock);
    log::info!("image {:?} runs as sandbox {:?}", image.manifest().name, sandbox.name());
    let total_us = timeline.elapsed_us();
    Ok(Report {
        name: sandbox.name(),
        image: image.manifest().name.clone(),
        mode,
        container: None,
        gpu_processes: metadata.driver.as_ref().map_or(metadata.clients.len(), |half| half.pids.len())
            + metadata.amd.len(),
        total_us,
        stopped_us: total_us,
        warnings: [warnings, damaged_advice].concat(),
        phases: timeline.phases(),
        memory: Vec::new(),
        waited: Vec::new(),
        written: None,
    })
}

/// Reserves a name and makes the new sandbox's places. Without a name given it is that of the old sandbox, if free.
fn hold(
    daemon: &Daemon,
    image: &Image,
    metadata: &ImageMetadata,
    request: &RestoreRequest<'_>,
    (gpu, mode): (String, Mode),
    (network, ports): &(Network, Vec<Port>),
    mounts: &Mounts,
) -> Result<Arc<Sandbox>> {
    let old_is_free = daemon.sandboxes.get(&metadata.name).is_ok_and(|sandbox| !sandbox.is_live())
        || matches!(
            daemon.sandboxes.get(&metadata.name),
            Err(Error::Sandboxes(SandboxError::Unknown { .. }))
        );
    let old = Some(metadata.name.as_str()).filter(|name| old_is_free && names::check(name).is_ok());
    let program = &image.manifest().program;
    let (name, stem, command, directory) = match request.app {
        Some(app) => (request.name, names::stem(&app.argv), app.argv.clone(), app.directory.clone()),
        None => {
            let directory = program.cwd.to_string_lossy().into_owned();
            (request.name.or(old), metadata.name.clone(), program.argv.clone(), directory)
        }
    };
    let shares = request.tenant.filter(|_| metadata.is_new_to_gpus());
    let shares =
        shares.map(|tenant| Ok::<_, Error>((tenant, slices::of_images(daemon, tenant)?))).transpose()?;
    daemon.sandboxes.add(name, &stem, |at| {
        let slice = shares.map(|(tenant, of_images)| slices::choose(tenant, of_images, at.live()));
        let record = Record {
            command,
            directory,
            image: Some(image.manifest().name.clone()),
            recovery: request.recovery.clone(),
            network: *network,
            ports: ports.clone(),
            limits: request.limits.or(metadata.limits),
            mounts: mounts.clone(),
            tenant: request.tenant.map(str::to_string),
            slice: slice.or(metadata.slice),
            service: request.service.map(|service| service.name.clone()),
            service_tenant: request.service.and_then(|service| service.tenant.clone()),
            ..Record::new(daemon.paths.new_id()?, at.name, mode, State::Restoring, gpu)
        };
        // An app from a framework image is a program of its own, and one that comes from elsewhere brings its log.
        let goes_on = request.app.is_none() && request.ready_check.is_none();
        create(daemon, record, at.former.filter(|_| goes_on), Some(image))
    })
}

impl Attempt<'_> {
    /// Returns what is still to come of the GPU halves.
    fn bring_back(&self) -> Result<Vec<PendingLoad>> {
        fault::point("restore-created")?;
        portions::check_room(self.daemon, self.sandbox)?;
        self.sandbox.limit()?;
        self.sandbox.furnish_network(&self.daemon.publisher)?;
        if self.metadata.framework {
            frameworks::open(&self.sandbox.run_directory)?;
        }
        if self.sandbox.record().mode == Mode::Driver {
            return self.bring_back_by_driver().map(|()| Vec::new());
        }
        AdmissionSocket::open(self.sandbox, wake::knocked)?;
        let workers = self.take_workers()?;
        if self.metadata.clients.is_empty() {
            self.sandbox.note_workers();
            let cpu = self.restore_cpu(&[], |_| {
                fault::point("restore-complete")?;
                self.check_ready()
            })?;
            self.sandbox.runs(cpu)?;
            return fault::point("restore-running").inspect_err(|_| self.end_program()).map(|()| Vec::new());
        }
        let halves = self.halves(workers)?;
        let (cpu, pending) = self.all_halves(halves)?;
        self.sandbox.runs(cpu)?;
        self.sandbox.note_workers();
        let resume = |half: &PendingLoad| {
            let resumed = gpu_half::resume(&half.worker, true, false);
            resumed.map_err(|error| loading::cause(&half.worker, error))
        };
        fault::point("restore-released")
            .and_then(|()| self.timeline.time("resume", || pending.iter().try_for_each(resume)))
            .and_then(|()| fault::point("restore-running"))
            .map_err(|error| self.sandbox.explain(error, RESTORED))
            .inspect_err(|_| self.end_program())?;
        Ok(pending)
    }

    fn check_ready(&self) -> Result<()> {
        self.request.ready_check.map_or(Ok(()), |ready_check| ready_check(self.sandbox))
    }

    fn hand_over(&self, app: &App) -> Result<()> {
        self.timeline
            .time("hand over", || frameworks::hand_over(self.sandbox, app))
            .map_err(|error| self.sandbox.explain(error, RESTORED))
            .inspect_err(|_| self.end_program())
    }

    fn bring_back_by_driver(&self) -> Result<()> {
        let mut members = None;
        let cpu = self.restore_cpu(&[], |restored| {
            // Before they run: one that ends before it is the driver's turn is missed then.
            let pids = self.metadata.driver.iter().flat_map(|half| &half.pids);
            let all = restored.pids();
            members = Some(Members::living(RESTORED, pids.filter_map(|pid| all.get(pid).copied())));
            fault::point("restore-complete")
        })?;
        self.sandbox.runs(cpu)?;
        let explain = |error| match &members {
            Some(members) => members.explain(error),
            None => error,
        };
        let attached = self.attach_driver().map_err(explain);
        attached.and_then(|()| fault::point("restore-running")).inspect_err(|_| {
            self.end_program();
            self.daemon.driver.abandon(&self.sandbox.id);
        })
    }

    /// The program runs, and its calls to the driver wait until this is done.
    fn attach_driver(&self) -> Result<()> {
        let Some(half) = &self.metadata.driver else { return Ok(()) };
        let cpu = self.sandbox.cpu("brought back")?;
        half.bring_back(&self.daemon.driver, &self.sandbox.id, cpu, self.pairs, self.timeline)
    }

    fn take_mapped(&self) -> Vec<Mapped> {
        std::mem::take(&mut *self.mapped.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn refused(&self, reason: &str) -> Error {
        ImageError::CannotRestore { image: self.image.manifest().name.clone(), reason: reason.to_string() }
            .into()
    }

    fn end_program(&self) {
        if let Ok(cpu) = self.sandbox.cpu("ended")
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
