//! Giving a program's GPU back while it needs none.
//!
//! ```text
//! program  ──runs──┬─ gate closed ───────────────────────┬─ a call ─▶ knock ─────────▶ gate open ──▶
//! worker           ├ Quiesce ─ Save ─ Sleep ═▶ keeper ───┼──────────▶ HandOver ─ ends
//! fresh worker     │                                     └──────────▶ Restore ─ Adopt ─ Resume ────▶
//! GPU memory       └ left there, or in a store in memory or on disk ─┘
//! ```
//!
//! The CPU half goes on running; only what needs the GPU waits. The worker's process stays as a keeper of the client's
//! socket (and, at level `gpu`, of descriptors of the memory), so that a sleeping program outlives the daemon. The record
//! says `asleep` from before the worker lets go until after the next one has taken over: [`crate::sleep::wake::settle`] tells
//! which of the two was reached when a daemon died in between.

pub mod wake;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::{Level, Mode, Operation, SleepReport, State};
use rekindle_protocol::worker::{Contents, Status, ask};
use rekindle_store::Store;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::fault;
use crate::host::places::Places;
use crate::host::resources::{available_memory, free_space};
use crate::images::machine;
use crate::reply::Reply;
use crate::sandboxes::Sandbox;
use crate::sandboxes::asleep::{Asleep, forget};
use crate::sandboxes::quiesce::QuiesceBarrier;
use crate::sandboxes::traces::Tracing;
use crate::timeline::Timeline;
use crate::workers::{Worker, gpu_half};

/// How long a worker may take to become a keeper.
const KEEPER_LIMIT: Duration = Duration::from_secs(60);
/// What must stay free beside what is saved.
const SPARE: u64 = 64 << 20;
/// Puts a program's GPU half to sleep.
pub fn sleep(
    daemon: &Daemon,
    sandbox: &Arc<Sandbox>,
    level: Level,
    reply: &Reply<'_>,
) -> Result<SleepReport> {
    let (timeline, tracing) = (Timeline::begin(), Tracing::begin(Operation::Sleep, word(level)));
    let operation = sandbox.begin_settled(State::FallingAsleep, "put to sleep")?;
    let (worker, status) = whose_half(sandbox).map_err(|error| operation.explain(error))?;
    check_room(&daemon.places, sandbox, level, status.device_bytes)?;
    let root = daemon.places.asleep(level);
    let slept = fall_asleep(sandbox, &worker, &status, (level, &root), &timeline, reply)
        .map_err(|error| operation.explain(error));
    // What of waking can be done beforehand is.
    match &slept {
        Ok(image) if level == Level::Host => daemon.start_waker(sandbox, image),
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
    Ok(report(sandbox, level, status.device_bytes, &timeline))
}

/// The worker that has the GPU half which is to sleep, and what it has.
fn whose_half(sandbox: &Sandbox) -> Result<(Arc<Worker>, Status)> {
    let record = sandbox.record();
    if record.asleep.is_some() {
        return Err(Error::AlreadyAsleep { name: record.name });
    }
    if record.tenant.is_some() {
        return Err(Error::SharesContext { name: record.name });
    }
    let worker = match record.mode {
        Mode::Sandbox => sandbox.serving_worker("put to sleep")?,
        Mode::Driver => None,
    };
    let worker = worker.ok_or(Error::NothingToSleep { name: record.name })?;
    let status = worker.status()?;
    Ok((worker, status))
}

fn fall_asleep(
    sandbox: &Sandbox,
    worker: &Worker,
    status: &Status,
    (level, root): (Level, &Path),
    timeline: &Timeline,
    reply: &Reply<'_>,
) -> Result<PathBuf> {
    let store = Store::open(root)?;
    forget(root, &sandbox.id);
    let draft = store.begin(&sandbox.id)?;
    reply.progress("quiesce", 0, 0);
    let contents = if level == Level::Gpu { Contents::Left } else { Contents::Saved };
    let barrier = timeline.time("quiesce", || QuiesceBarrier::begin(sandbox, worker, contents))?;
    reply.progress("save", 0, 0);
    draft.adopt(gpu_half::save(worker, draft.path(), contents, timeline)?)?;
    draft.manifest().gpus = machine::gpus(status);
    let image = timeline.time("commit", || draft.commit())?;
    fault::point("sleep-saved")?;
    let (client, pid) = (barrier.client.clone(), worker.client());
    let store = store.root().to_path_buf();
    let image = image.path().to_path_buf();
    let asleep = Asleep { level, store, image: image.clone(), client, pid, bytes: status.device_bytes };
    sandbox.update(|record| record.asleep = Some(asleep))?;
    let gone = fault::point("sleep-noted").and_then(|()| timeline.time("let go", || let_go(worker)));
    match gone {
        Ok(()) => barrier.end(),
        Err(error) => {
            sandbox.note(|record| record.asleep = None);
            return Err(error);
        }
    }
    Ok(image)
}

/// Has the worker give the GPU back.
fn let_go(worker: &Worker) -> Result<()> {
    let action = "give the GPU back";
    worker.ask(action, ask::Sleep {}, &[])?;
    let began = Instant::now();
    while began.elapsed() < KEEPER_LIMIT {
        // The first connection ends with what the process was before.
        match worker.status() {
            Ok(status) if status.asleep => return Ok(()),
            Err(error) if worker.ended().is_some() => return Err(error),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Err(Error::Worker { action, reason: "it is still awake; its log says why".to_string() })
}

/// Removes what is in the stores and belongs to no sandbox that sleeps.
pub fn clear_strays(places: &Places, sleeps: impl Fn(&str) -> bool) {
    for level in [Level::Host, Level::Disk] {
        let root = places.asleep(level);
        let images =
            if root.is_dir() { Store::open(&root).and_then(|store| store.images()) } else { continue };
        for image in images.into_iter().flatten().filter(|image| !sleeps(&image.name)) {
            forget(&root, &image.name);
        }
    }
}

fn check_room(places: &Places, sandbox: &Sandbox, level: Level, bytes: u64) -> Result<()> {
    let free = match level {
        Level::Gpu => return Ok(()),
        Level::Host => available_memory().min(free_space(&places.runs)),
        Level::Disk => free_space(&places.state),
    };
    if free < bytes + SPARE {
        let name = sandbox.name();
        return Err(Error::NoRoomToSleep {
            name,
            level: word(level),
            needed: (bytes + SPARE) >> 20,
            free: free >> 20,
        });
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
