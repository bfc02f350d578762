//! Giving a program's GPU back while it needs none.
//!
//! ```text
//! program  ──runs──┬─ calls wait ────────────────────────┬─ a call ─▶ knock ─────────▶ calls go on ▶
//! worker           ├ Quiesce ─ Save ─ Sleep ═▶ keeper ───┼──────────▶ HandOver ─ ends
//! fresh worker     │                                     └──────────▶ Restore ─ Adopt ─ Resume ────▶
//! GPU memory       └ left there, or in a store in memory or on disk ─┘
//! ```
//!
//! Of a program with several processes that use the GPU all halves sleep, or none: each worker says that it is ready, and waits
//! for a byte of a pipe. The daemon writes all bytes at once; if it dies before, each reads the pipe's end and goes on.
//!
//! What sleeps can go on to a lower level ([`descend`]).
//!
//! The CPU half goes on running; only what needs the GPU waits. In the worker's place a keeper stays, of the client's
//! socket (and, at level `gpu`, of descriptors of the memory), so that a sleeping program outlives the daemon: its process, or
//! another one, if its context is to serve another program. The record
//! says `asleep` from before the worker lets go until after the next one has taken over: [`crate::sleep::wake::settle`] tells
//! which of the two was reached when a daemon died in between. The record names the next worker before the keeper ends.

mod descend;
mod error;
pub mod wake;

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_protocol::client::Quiesced;
use rekindle_protocol::daemon::{Level, Mode, Operation, SleepReport, State};
use rekindle_protocol::worker::{Contents, Status, ask};
use rekindle_store::Store;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::fault;
use crate::host::paths::Paths;
use crate::host::resources::{available_memory, free_space};
use crate::images::machine;
use crate::reply::Reply;
use crate::sandboxes::Sandbox;
use crate::sandboxes::asleep::{SleepingGpu, SleepingProcess, forget};
use crate::sandboxes::standstill::{self, Standstill};
use crate::sandboxes::traces::Tracing;
use crate::timeline::Timeline;
use crate::workers::{Worker, WorkerError, gpu_half};

pub use error::SleepError;

/// How long a worker may take to become a keeper.
const KEEPER_LIMIT: Duration = Duration::from_secs(60);
/// What must stay free beside what is saved.
const SPARE: u64 = 64 << 20;

/// Puts a program's GPU half to sleep; one that sleeps already goes on to a lower level.
pub fn sleep(
    daemon: &Daemon,
    sandbox: &Arc<Sandbox>,
    level: Level,
    reply: &Reply<'_>,
) -> Result<SleepReport> {
    let (timeline, tracing) = (Timeline::begin(), Tracing::begin(Operation::Sleep, word(level)));
    let operation = sandbox.begin_settled(State::FallingAsleep, "put to sleep")?;
    let asleep = sandbox.record().asleep;
    if let Some(asleep) = asleep.filter(|asleep| asleep.level < level) {
        let (how, which) = ((timeline, tracing), (&asleep, level));
        return descend::descend(daemon, sandbox, which, operation, how, reply);
    }
    let (workers, states) = whose_halves(sandbox).map_err(|error| operation.explain(error))?;
    let bytes = states.iter().map(|status| status.device_bytes).sum();
    check_room(&daemon.paths, sandbox, level, bytes)?;
    let root = daemon.paths.asleep(level);
    let slept = fall_asleep(sandbox, &workers, &states, (level, &root), &timeline, reply)
        .map_err(|error| operation.explain(error));
    // What of waking can be done beforehand is.
    match &slept {
        Ok(image) if level == Level::Host && workers.len() == 1 => daemon.start_waker(sandbox, image),
        _ => {}
    }
    drop(operation);
    let stopped_us = timeline.elapsed_us();
    if let Err(error) = tracing.end(sandbox, &timeline, stopped_us, slept) {
        forget(&root, &sandbox.id);
        return Err(error);
    }
    daemon.pool.prepare(&sandbox.record().gpu);
    log::info!("the GPU half of {:?} sleeps ({})", sandbox.name(), word(level));
    Ok(report(sandbox, level, bytes, &timeline))
}

/// The workers that have the GPU halves which are to sleep, and what each has.
fn whose_halves(sandbox: &Sandbox) -> Result<(Vec<Arc<Worker>>, Vec<Status>)> {
    let record = sandbox.record();
    if let Some(asleep) = record.asleep {
        return Err(SleepError::AlreadyAsleep { name: record.name, level: word(asleep.level) }.into());
    }
    if record.tenant.is_some() {
        return Err(SleepError::SharesContext { name: record.name }.into());
    }
    let workers = match record.mode {
        Mode::Sandbox => sandbox.serving_workers()?,
        Mode::Driver => Vec::new(),
    };
    if workers.is_empty() {
        return Err(SleepError::NothingToSleep { name: record.name }.into());
    }
    let states = workers.iter().map(|worker| worker.status()).collect::<Result<_>>()?;
    Ok((workers, states))
}

fn fall_asleep(
    sandbox: &Sandbox,
    workers: &[Arc<Worker>],
    states: &[Status],
    (level, root): (Level, &Path),
    timeline: &Timeline,
    reply: &Reply<'_>,
) -> Result<PathBuf> {
    let store = Store::open(root)?;
    forget(root, &sandbox.id);
    let draft = store.begin(&sandbox.id)?;
    reply.progress("quiesce", 0, 0);
    let contents = if level == Level::Gpu { Contents::Left } else { Contents::Saved };
    let standing = timeline.time("quiesce", || Standstill::begin(sandbox, workers, contents))?;
    reply.progress("save", 0, 0);
    draft.adopt(standstill::save(workers, &standing.paths(&draft), contents, timeline)?)?;
    {
        let mut manifest = draft.manifest();
        // All are on the same GPUs.
        manifest.gpus = states.first().map(machine::gpus).unwrap_or_default();
        manifest.halves = standing.apart();
    }
    let image = timeline.time("commit", || draft.commit())?;
    fault::point("sleep-saved")?;
    let process = |(client, worker): (&Quiesced, &Arc<Worker>)| SleepingProcess {
        client: client.clone(),
        pid: worker.client(),
    };
    let mut processes: Vec<SleepingProcess> = standing.clients().zip(workers).map(process).collect();
    let SleepingProcess { client, pid } = processes.remove(0);
    let store = store.root().to_path_buf();
    let image = image.path().to_path_buf();
    let bytes = states.iter().map(|status| status.device_bytes).sum();
    let asleep = SleepingGpu { level, store, image: image.clone(), client, pid, bytes, others: processes };
    sandbox.update(|record| record.asleep = Some(asleep))?;
    let gone = fault::point("sleep-noted").and_then(|()| timeline.time("let go", || let_go(workers)));
    match gone {
        Ok(()) => standing.end(),
        Err(error) => {
            sandbox.note(|record| record.asleep = None);
            return Err(error);
        }
    }
    Ok(image)
}

/// Has the workers give the GPU back: all of them, or none.
fn let_go(workers: &[Arc<Worker>]) -> Result<()> {
    let action = "give the GPU back";
    let (ready, mut word) = std::io::pipe().map_err(|source| Error::system("make a pipe", source))?;
    gpu_half::each(workers, |worker| worker.ask(action, ask::Sleep {}, &[ready.as_fd()]))?;
    drop(ready);
    fault::point("sleep-ready")?;
    // One write, of which either all comes or nothing.
    let said = word.write(&vec![1; workers.len()]);
    said.map_err(|source| Error::system("write to a pipe", source))?;
    drop(word);
    gpu_half::each(workers, |worker| {
        let began = Instant::now();
        // Whoever is there next does not know this connection.
        worker.hang_up();
        while began.elapsed() < KEEPER_LIMIT {
            match worker.status() {
                // One that goes on elsewhere gives the GPU's memory back before it says so.
                Ok(status) if status.asleep && !worker.is_awaited() => return Ok(()),
                Err(error) if worker.ended().is_some() => return Err(error),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Err(WorkerError::Failed { action, reason: "it is still awake; its log says why".to_string() }.into())
    })?;
    // It would take the GPU's memory.
    workers.iter().for_each(|worker| worker.let_go_of_held());
    Ok(())
}

/// Removes what is in the stores and belongs to no sandbox that sleeps: by its id, and the store that it sleeps in.
pub fn clear_strays(paths: &Paths, sleeps: impl Fn(&str, &Path) -> bool) {
    for level in [Level::Gpu, Level::Host, Level::Disk] {
        let root = paths.asleep(level);
        let images =
            if root.is_dir() { Store::open(&root).and_then(|store| store.images()) } else { continue };
        for image in images.into_iter().flatten().filter(|image| !sleeps(&image.name, &root)) {
            forget(&root, &image.name);
        }
    }
}

fn check_room(paths: &Paths, sandbox: &Sandbox, level: Level, bytes: u64) -> Result<()> {
    let free = match level {
        Level::Gpu => return Ok(()),
        Level::Host => available_memory().min(free_space(&paths.runs)),
        Level::Disk => free_space(&paths.state),
    };
    if free < bytes + SPARE {
        let name = sandbox.name();
        return Err(SleepError::NoRoomToSleep {
            name,
            level: word(level),
            needed: (bytes + SPARE) >> 20,
            free: free >> 20,
        }
        .into());
    }
    Ok(())
}

pub fn report(sandbox: &Sandbox, level: Level, bytes: u64, timeline: &Timeline) -> SleepReport {
    let (total_us, phases) = (timeline.elapsed_us(), timeline.phases());
    SleepReport { name: sandbox.name(), level, bytes, total_us, phases }
}

/// The word for a level, as everywhere.
pub fn word(level: Level) -> &'static str {
    match level {
        Level::Gpu => "gpu",
        Level::Host => "host",
        Level::Disk => "disk",
    }
}
