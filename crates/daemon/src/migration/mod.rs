//! Moving a program's GPU half to another GPU of this machine, while the program lives.
//!
//! ```text
//! program       ──runs──────────────────┬ gate closed ────────────────────────────┬──runs───▶
//! its worker    ├ copied ahead, rounds ─┼ Quiesce ─ Save ──────── Part ┄┄┄┄┄┄┄┄┄┄┄┴ ends
//! on the other  ├ ready ─ filled ahead ─┼─────────────── Restore ┄ TakeOver ─ Resume ──────▶
//! ```
//!
//! Only the GPU half moves: processes, addresses, names, files and sockets are what they were. The program's worker has all of
//! its state until the other one has the client, which is decided by one byte in a pipe between the two
//! (`crates/worker/src/control/parting.rs`). So it goes on where it was, or there, whoever dies; [`settle`] tells which, after a
//! daemon's death.

mod ahead;
mod hand_over;
mod outlive;
mod plan;
mod slots;
mod standstill;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::{MigrationReport, Operation, Round, State, Way};
use rekindle_protocol::worker::Status;
use rekindle_store::Store;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::events;
use crate::fault;
use crate::host::gpu;
use crate::host::places::Places;
use crate::reply::Reply;
use crate::sandboxes::Sandbox;
use crate::sandboxes::asleep::forget;
use crate::sandboxes::record::Moving;
use crate::sandboxes::traces::Tracing;
use crate::timeline::{GPU, Timeline};
use crate::workers::Worker;

pub use outlive::outlive;

const WANTED: &str = "migrated";
/// How often memory is copied ahead at most.
const MOST_ROUNDS: u32 = 16;
/// Where the user has no wish.
const USUAL_ROUNDS: u32 = 4;
/// How long two workers whose daemon died may take to be of one mind.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);
/// How often they are asked.
const LOOK: Duration = Duration::from_millis(2);

/// Said of a program that shared a context.
const STAYS: &str = "the GPU context that it shared has failed, and the daemon died while it was to go on in another one; its GPU \
                     calls return an error from now on";

/// One move under way.
struct Move<'a> {
    daemon: &'a Daemon,
    sandbox: &'a Arc<Sandbox>,
    source: Arc<Worker>,
    target: Arc<Worker>,
    /// Of the source, before.
    status: Status,
    moving: Moving,
    /// What goes through the host's memory lies here.
    store: PathBuf,
    timeline: &'a Timeline,
    reply: &'a Reply<'a>,
}

/// How a move went.
struct Moved {
    /// For how long the program stood still.
    stopped_us: u64,
    way: Way,
    rounds: Vec<Round>,
}

/// Moves a running program's GPU half to this GPU, once its memory was copied ahead at most so many times
/// through the host's; or, if that is not said, by the way that is best.
pub fn migrate(
    daemon: &Daemon,
    sandbox: &Arc<Sandbox>,
    (gpu, rounds): (&str, Option<u32>),
    reply: &Reply<'_>,
) -> Result<MigrationReport> {
    let (gpu, rounds) = (gpu::choose(Some(gpu))?, rounds.map(|rounds| rounds.min(MOST_ROUNDS)));
    let (timeline, tracing) = (Timeline::begin(), Tracing::begin(Operation::Migrate, &gpu));
    let operation = sandbox.begin_settled(State::Migrating, WANTED)?;
    let from = sandbox.record().gpu;
    let (source, status) = plan::source(sandbox, &gpu).map_err(|error| operation.explain(error))?;
    reply.progress("worker", 0, 0);
    let target =
        timeline.time("take a worker", || sandbox.take_worker_on(&gpu, Some(daemon.pool.spare(&gpu)?)))?;
    let moving = Moving { gpu: gpu.clone(), worker: target.number(), pid: source.client() };
    // From here on the end of either is no end of the program's.
    for worker in [&source, &target] {
        worker.set_followed(true);
    }
    let store = daemon.places.moving();
    let one = Move { daemon, sandbox, source, target, status, moving, store, timeline: &timeline, reply };
    let moved = one.perform(rounds).map_err(|error| match operation.explain(error) {
        Error::Cancelled => Error::MoveCancelled,
        other => other,
    });
    one.clear();
    one.source.set_followed(false);
    if moved.is_err() {
        sandbox.end_worker(&one.target);
        sandbox.leave_alone(&one.source);
        sandbox.note(|record| record.moving = None);
        sandbox.note_workers();
    }
    drop(operation);
    sandbox.fill_pool_later();
    let stopped_us = moved.as_ref().map_or(0, |moved| moved.stopped_us);
    let Moved { way, stopped_us, rounds } = tracing.end(sandbox, &timeline, stopped_us, moved)?;
    log::info!("{:?} has moved from {from} to {gpu}", sandbox.name());
    Ok(MigrationReport {
        name: sandbox.name(),
        from,
        gpu,
        way,
        bytes: one.status.device_bytes,
        total_us: timeline.elapsed_us(),
        stopped_us,
        rounds,
        phases: timeline.phases(),
    })
}

impl Move<'_> {
    /// Removes what went through the host's memory.
    fn clear(&self) {
        let images = Store::open(&self.store).and_then(|store| store.images());
        let own = format!("{}.", self.sandbox.id);
        for image in images.into_iter().flatten().filter(|image| image.name.starts_with(&own)) {
            forget(&self.store, &image.name);
        }
    }

    fn perform(&self, wish: Option<u32>) -> Result<Moved> {
        self.sandbox.update(|record| record.moving = Some(self.moving.clone()))?;
        self.sandbox.note_workers();
        fault::point("migrate-begun")?;
        let found = self.timeline.lane(GPU).time("worker start", || self.target.first_status())?;
        let way = plan::check(self, &found, wish)?;
        let store = Store::open(&self.store)?;
        self.reply.check_wanted()?;
        let mut rounds = Vec::new();
        let most = if way == Way::Host { wish.unwrap_or(USUAL_ROUNDS) } else { 0 };
        let ahead = self.copy_ahead(&store, &found, most, &mut rounds)?;
        let last = self.stop_and_move(&store, way, ahead.as_ref())?;
        rounds.push(last);
        Ok(Moved { way, stopped_us: last.stopped_us, rounds })
    }
}

/// The program goes on with the worker on the other GPU.
fn arrive(sandbox: &Arc<Sandbox>, moving: &Moving, source: Option<&Arc<Worker>>, target: &Worker) {
    target.set_client(moving.pid);
    if let Some(source) = source {
        // It ends by itself; a driver takes its time for that.
        source.set_client(0);
        let (sandbox, source) = (sandbox.clone(), source.clone());
        std::thread::spawn(move || sandbox.end_worker(&source));
    }
    // From a context that has failed it has gone to another one.
    let happened = if sandbox.record().gpu == moving.gpu { "outlived" } else { "migrated" };
    sandbox.note(|record| {
        record.gpu = moving.gpu.clone();
        record.moving = None;
        record.problem = None;
    });
    sandbox.note_workers();
    sandbox.leave_alone(target);
    events::tell(happened, |happened| {
        happened.sandbox = Some(sandbox.name());
        happened.gpu = Some(moving.gpu.clone());
    });
}

/// After a daemon died: finds out where a program is that was being moved, which its workers have settled between them.
pub fn settle(sandbox: &Arc<Sandbox>) {
    let record = sandbox.record();
    let Some(moving) = record.moving else {
        // One that shares its context is moved for one reason alone.
        if record.state == State::Migrating && record.tenant.is_some() {
            sandbox.report_problem(STAYS.to_string());
        }
        return;
    };
    let (began, workers) = (Instant::now(), sandbox.live_workers());
    let target = workers.iter().find(|worker| worker.number() == moving.worker);
    let source = workers.iter().find(|worker| worker.client() == moving.pid);
    let state = |worker: &Arc<Worker>| worker.status().ok();
    while source.and_then(state).is_some_and(|status| status.parted) && began.elapsed() < SETTLE_LIMIT {
        std::thread::sleep(LOOK);
    }
    let serves = |status: Status| status.client != 0 && !status.held_back;
    match target.filter(|target| state(target).is_some_and(serves)) {
        Some(target) => arrive(sandbox, &moving, source, target),
        None => {
            target.iter().for_each(|target| sandbox.end_worker(target));
            sandbox.note(|record| record.moving = None);
            sandbox.note_workers();
            sandbox.report_problem(if record.gpu == moving.gpu {
                STAYS.to_string()
            } else {
                let to = moving.gpu;
                format!("the daemon died while this was to move to {to}; it goes on where it was")
            });
        }
    }
}

/// Removes what moves of an earlier daemon have left, all of which are settled.
pub fn clear(places: &Places) {
    let _ = std::fs::remove_dir_all(places.moving());
}
