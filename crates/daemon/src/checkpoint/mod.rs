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

mod attempt;
mod error;
pub mod framework;
mod gather;
mod pinned;
mod pre_copy;
mod ready;
mod scratch;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rekindle_protocol::daemon::{Limits, Mode, Operation, Report, State};
use rekindle_protocol::mounts::Mounts;
use rekindle_protocol::network::Network;
use rekindle_sandbox::process::tree as process_tree;
use rekindle_sandbox::{Cpu, Frozen, Sandbox as CpuHalf, Tree};

use crate::caches::Priority;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::client_library;
use crate::host::process;
use crate::images::driver_half;
use crate::reply::Reply;
use crate::restore::proof;
use crate::sandboxes::Sandbox;
use crate::sandboxes::admission::AdmissionSocket;
use crate::sandboxes::members::Members;
use crate::sandboxes::names;
use crate::sandboxes::traces::Tracing;
use crate::sleep::wake;
use crate::timeline::{CPU, Timeline};
use crate::workers::WorkerError;

use attempt::{Attempt, Gpu, Subject};

pub use error::CheckpointError;
pub use gather::Done;
pub use scratch::Scratch;

/// How long a stopped program's sandbox may take to be gone.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// So often a checkpoint begins anew because a process was asking for a GPU when it was frozen.
const MOST_TRIES: u32 = 3;

/// What the user asks for.
#[derive(Default)]
pub struct CheckpointRequest<'a> {
    pub to: &'a str,
    pub leave_running: bool,
    /// How long the driver may wait for the GPU's work to end.
    pub gpu_wait: Duration,
    /// Whether the program waits for an app.
    pub framework: bool,
    /// Whether the image is restored once beside the program, and is none if that fails.
    pub prove: bool,
    pub purpose: Purpose<'a>,
}

/// What an image is taken for.
#[derive(Clone, Copy, Default)]
pub enum Purpose<'a> {
    /// To be kept.
    #[default]
    Image,
    /// To be sent ahead of a program that moves.
    Round,
    /// As the last of those: the program ends once it runs elsewhere, which this sees to while it stands still. If that
    /// fails it goes on.
    Move(&'a (dyn Fn(&Frozen<'_>) -> Result<()> + Sync)),
}

impl CheckpointRequest<'_> {
    /// Whether the image is proven, by this wish or by the daemon's setting.
    pub fn is_proof_wanted(&self) -> bool {
        self.prove || matches!(self.purpose, Purpose::Image) && proof::is_wanted_always()
    }
}

pub fn checkpoint(
    daemon: &Daemon,
    sandbox: &Arc<Sandbox>,
    request: &CheckpointRequest<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let (timeline, tracing) = (Timeline::begin(), Tracing::begin(Operation::Checkpoint, request.to));
    let (state, wanted) = match request.purpose {
        Purpose::Image => (State::Checkpointing, "checkpointed"),
        Purpose::Round | Purpose::Move(_) => (State::Migrating, "migrated"),
    };
    let operation = wake::begin_awake(sandbox, state, wanted)?;
    let cpu = sandbox.cpu("checkpointed")?;
    let _claim = daemon.claims.take(cpu.pids().into_values())?;
    let members = Members::living("checkpointed", cpu.pids().into_values());
    let explain = |error| members.explain(operation.explain(error));
    let (mut tries, mut given_up) = (0, None);
    let (attempt, taken) = loop {
        let visitors = sandbox.admission().map_or(0, AdmissionSocket::settle);
        let attempt = attempt(daemon, sandbox, cpu, request, &timeline, reply).map_err(explain)?;
        // One that does not begin leaves no trace.
        let draft = match given_up.take() {
            Some(draft) => daemon.store.begin_again(draft)?,
            None => daemon.store.begin(request.to)?,
        };
        client_library::keep_with(&draft, &sandbox.run_directory)?;
        let draft = Mutex::new(Some(draft));
        let taken = attempt.make(&draft);
        tries += 1;
        match &taken {
            // CRIU cannot take a connection to the admission socket.
            Err(error)
                if tries < MOST_TRIES
                    && sandbox.admission().map_or(0, AdmissionSocket::visitors) != visitors =>
            {
                log::info!("a process asked for a GPU meanwhile, so the checkpoint begins again: {error}");
            }
            Err(
                error @ (Error::Checkpoint(CheckpointError::PinnedWritten { .. })
                | Error::Workers(WorkerError::Overwritten)),
            ) => {
                log::info!("the checkpoint begins again: {error}");
            }
            _ => break (attempt, taken),
        }
        timeline.begin_again();
        given_up = draft.into_inner().unwrap_or_else(PoisonError::into_inner);
    };
    let taken = taken.map_err(|error| match attempt.made.get() {
        // What failed after that did not fail because the program ended, as it may have been asked to.
        Some(_) => error,
        None => attempt.caused_by_worker(error).unwrap_or_else(explain),
    });
    drop(operation);
    if taken.is_ok() && matches!(request.purpose, Purpose::Image) {
        sandbox.note_image(attempt.workers().len());
    }
    if !request.leave_running && taken.is_ok() {
        timeline.lane(CPU).time("end", || sandbox.wait_end(Some(STOP_LIMIT)));
        // What was stopped is likely to be restored.
        if matches!(request.purpose, Purpose::Image)
            && !attempt.workers().is_empty()
            && let Ok(halves) = daemon.store.image(request.to).and_then(|image| image.halves())
        {
            daemon.pool.prepare(&sandbox.record().gpu);
            let paths: Vec<_> = halves.iter().map(|half| half.path().to_path_buf()).collect();
            let sandbox = sandbox.clone();
            std::thread::spawn(move || {
                paths.iter().for_each(|path| sandbox.fill_caches(path, Priority::Made));
            });
        }
    }
    let taken = tracing.end(sandbox, &timeline, timeline.stopped_us(), taken)?;
    Ok(attempt.report(&taken))
}

/// What is to be taken of a sandbox, as it is now.
fn attempt<'a>(
    daemon: &'a Daemon,
    sandbox: &'a Sandbox,
    cpu: &'a CpuHalf,
    request: &'a CheckpointRequest<'a>,
    timeline: &'a Timeline,
    reply: &'a Reply<'a>,
) -> Result<Attempt<'a>> {
    let record = sandbox.record();
    let workers = sandbox.serving_workers()?;
    let gpu = match (workers.len(), record.mode) {
        (1.., _) => Gpu::Workers { sandbox, workers },
        (0, Mode::Sandbox) => Gpu::None,
        (0, Mode::Driver) => Gpu::Driver,
    };
    let subject = Subject {
        id: sandbox.id.clone(),
        network: record.network,
        ports: record.ports,
        limits: record.limits,
        mounts: record.mounts,
        slice: record.slice,
        tenant: record.tenant,
        name: record.name,
        command: record.command,
        gpu: record.gpu,
        mode: record.mode,
        cpu: Cpu::Sandbox(cpu),
    };
    let (amd, criu) = match gpu {
        Gpu::Driver => driver_half::amd(&subject.cpu, daemon.criu()?)?,
        Gpu::None | Gpu::Workers { .. } => (Vec::new(), daemon.criu()?.clone()),
    };
    Ok(Attempt {
        daemon,
        criu,
        subject,
        gpu,
        amd,
        needs_gpu: false,
        request,
        timeline,
        warnings: Mutex::default(),
        served: Mutex::default(),
        saved_us: OnceLock::new(),
        written_ahead: OnceLock::new(),
        copied_ahead: OnceLock::new(),
        last_image: Some(&sandbox.last_image),
        last_cut: Some(&sandbox.last_cut),
        writes_pinned: Some(&sandbox.writes_pinned),
        last_links: OnceLock::new(),
        earlier_pages: OnceLock::new(),
        known_files: OnceLock::new(),
        layout: Mutex::default(),
        described: Mutex::default(),
        made: OnceLock::new(),
        published: Some(&sandbox.network),
        reply,
    })
}

/// Takes an image of a program that was started without us. Unless `mode` asks for the driver, it need not use a GPU.
pub fn checkpoint_pid(
    daemon: &Daemon,
    pid: i32,
    mode: Option<Mode>,
    request: &CheckpointRequest<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let timeline = Timeline::begin();
    if mode == Some(Mode::Sandbox) {
        return Err(CheckpointError::NotSandboxed { pid }.into());
    }
    if let Some(sandbox) = daemon.sandboxes.all().into_iter().find(|sandbox| sandbox.has(pid)) {
        return Err(CheckpointError::InSandbox { pid, name: sandbox.name() }.into());
    }
    // Before it is looked at: one that is being checkpointed has a tracer.
    let pids = process_tree(pid);
    if reply.asker().is_some_and(|asker| pids.contains(&asker)) {
        return Err(CheckpointError::OfTheAsker { pid }.into());
    }
    let _claim = daemon.claims.take(pids.iter().copied())?;
    let members = Members::living("checkpointed", pids);
    let tree = Tree::find(pid)?;
    let command = process::command(pid);
    let subject = Subject {
        id: format!("pid-{pid}"),
        network: Network::Host,
        ports: Vec::new(),
        limits: Limits::default(),
        mounts: Mounts::default(),
        slice: None,
        tenant: None,
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
        request,
        timeline: &timeline,
        warnings: Mutex::default(),
        served: Mutex::default(),
        saved_us: OnceLock::new(),
        written_ahead: OnceLock::new(),
        copied_ahead: OnceLock::new(),
        last_image: None,
        last_cut: None,
        writes_pinned: None,
        last_links: OnceLock::new(),
        earlier_pages: OnceLock::new(),
        known_files: OnceLock::new(),
        layout: Mutex::default(),
        described: Mutex::default(),
        made: OnceLock::new(),
        published: None,
        reply,
    };
    let draft = Mutex::new(Some(daemon.store.begin(request.to)?));
    let taken = attempt.make(&draft).map_err(|error| {
        // As of a sandbox's program.
        if attempt.made.get().is_some() {
            return error;
        }
        if tree.is_ending() {
            log::info!("{error}");
            return CheckpointError::ProcessEnded { pid }.into();
        }
        members.explain(error)
    })?;
    Ok(attempt.report(&taken))
}
