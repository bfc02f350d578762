//! Moving a program's GPU halves to another GPU of this machine, while the program lives: one for each of its processes that
//! use a GPU. A program that sees several GPUs moves to as many, each to the one at its place; some may be the same.
//!
//! ```text
//! program       ──runs──────────────────┬ calls wait ─────────────────────────────┬──runs───▶
//! its worker    ├ copied ahead, rounds ─┼ Quiesce ─ Save ──────── Part ┄┄┄┄┄┄┄┄┄┄┄┴ ends
//! on the other  ├ ready ─ filled ahead ─┼─────────────── Restore ┄ TakeOver ─ Resume ──────▶
//! ```
//!
//! Only what is on the GPU moves: processes, addresses, names, files and sockets are what they were. A process's worker has all
//! of its state until the other one has the client, which is decided by one byte in a pipe between the two
//! (`crates/worker/src/control/parting.rs`). So it goes on where it was, or there, whoever dies; [`settle`] tells which, after a
//! daemon's death. Of several processes all move, or none, by one write to a pipe that all of their workers read.

mod error;
mod hand_over;
mod ipc_names;
mod outlive;
mod plan;
mod pre_copy;
mod slots;
mod stop_and_copy;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::{MigrationPath, MigrationReport, Operation, Round, State};
use rekindle_protocol::worker::Status;
use rekindle_store::Store;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::events;
use crate::fault;
use crate::host::gpu;
use crate::host::paths::Paths;
use crate::reply::Reply;
use crate::sandboxes::Sandbox;
use crate::sandboxes::asleep::forget;
use crate::sandboxes::record::{Moving, MovingProcess};
use crate::sandboxes::traces::Tracing;
use crate::sandboxes::workers::WorkerTake;
use crate::timeline::{GPU, Timeline};
use crate::workers::{Worker, gpu_half};

pub use error::MigrationError;
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
struct Migration<'a> {
    daemon: &'a Daemon,
    sandbox: &'a Arc<Sandbox>,
    gpu: &'a str,
    halves: Vec<Half>,
    /// What goes through the host's memory lies here.
    store: PathBuf,
    timeline: &'a Timeline,
    reply: &'a Reply<'a>,
}

/// What one process has on the GPU.
struct Half {
    source: Arc<Worker>,
    target: Arc<Worker>,
    /// Of the source, before.
    status: Status,
}

impl Half {
    fn process(&self) -> MovingProcess {
        MovingProcess { worker: self.target.number(), pid: self.source.client() }
    }

    /// What it has on the GPU at this place.
    fn bytes_on(&self, place: usize) -> u64 {
        self.status.held_bytes.get(place).copied().unwrap_or_default()
    }
}

/// How a move went.
struct MigrationOutcome {
    /// For how long the program stood still.
    stopped_us: u64,
    way: MigrationPath,
    rounds: Vec<Round>,
}

/// Moves a running program's GPU half to this GPU, or these, once its memory was copied ahead at most so many times
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
    let sources = plan::sources(sandbox, &gpu).map_err(|error| operation.explain(error))?;
    reply.progress("worker", 0, 0);
    let load = sandbox.pool.begin_load();
    let halves = timeline.time("take a worker", || take_workers(daemon, sandbox, sources, &gpu))?;
    let store = daemon.paths.moving();
    let one = Migration { daemon, sandbox, gpu: &gpu, halves, store, timeline: &timeline, reply };
    let moved = one.perform(rounds).map_err(|error| match operation.explain(error) {
        Error::Cancelled => MigrationError::Cancelled.into(),
        other => other,
    });
    one.clear();
    one.halves.iter().for_each(|half| half.source.set_followed(false));
    if moved.is_err() {
        one.halves.iter().for_each(|half| sandbox.end_worker(&half.target));
        one.halves.iter().for_each(|half| sandbox.leave_alone(&half.source));
        sandbox.note(|record| record.moving = None);
        sandbox.note_workers();
    }
    drop(operation);
    load.end_later();
    let stopped_us = moved.as_ref().map_or(0, |moved| moved.stopped_us);
    let MigrationOutcome { way, stopped_us, rounds } = tracing.end(sandbox, &timeline, stopped_us, moved)?;
    log::info!("{:?} has moved from {from} to {gpu}", sandbox.name());
    Ok(MigrationReport {
        name: sandbox.name(),
        bytes: one.bytes(),
        from,
        way,
        total_us: timeline.elapsed_us(),
        stopped_us,
        rounds,
        phases: timeline.phases(),
        gpu,
    })
}

/// Takes a worker on the other GPU for each of these. From here on the end of none of them is an end of the program's.
fn take_workers(
    daemon: &Daemon,
    sandbox: &Arc<Sandbox>,
    sources: Vec<(Arc<Worker>, Status)>,
    gpu: &str,
) -> Result<Vec<Half>> {
    let mut halves: Vec<Half> = Vec::new();
    for (source, status) in sources {
        let taken = daemon
            .pool
            .spare(gpu)
            .map(|spare| WorkerTake { wanted: Some(spare), slice: source.slice(), ..WorkerTake::default() })
            .and_then(|take| sandbox.take_worker_on(gpu, take));
        match taken {
            Ok(target) => {
                target.set_followed(true);
                halves.push(Half { source, target, status });
            }
            Err(error) => {
                halves.iter().for_each(|half| sandbox.end_worker(&half.target));
                return Err(error);
            }
        }
    }
    halves.iter().for_each(|half| half.source.set_followed(true));
    Ok(halves)
}

impl Migration<'_> {
    /// Removes what went through the host's memory.
    fn clear(&self) {
        let images = Store::open_transient(&self.store).and_then(|store| store.images());
        let own = format!("{}.", self.sandbox.id);
        for image in images.into_iter().flatten().filter(|image| image.name.starts_with(&own)) {
            forget(&self.store, &image.name);
        }
    }

    /// Of all halves.
    fn bytes(&self) -> u64 {
        self.halves.iter().map(|half| half.status.device_bytes).sum()
    }

    /// Of all halves, on the GPU at this place.
    fn bytes_on(&self, place: usize) -> u64 {
        self.halves.iter().map(|half| half.bytes_on(place)).sum()
    }

    fn perform(&self, rounds_wanted: Option<u32>) -> Result<MigrationOutcome> {
        let moving = Moving::of(self.gpu, self.halves.iter().map(Half::process));
        self.sandbox.update(|record| record.moving = moving)?;
        self.sandbox.note_workers();
        fault::point("migrate-begun")?;
        let start = || gpu_half::each(&self.halves, |half| half.target.first_status());
        let found = self.timeline.lane(GPU).time("worker start", start)?;
        let way = plan::check(self, &found, rounds_wanted)?;
        let store = Store::open_transient(&self.store)?;
        self.reply.check_wanted()?;
        let most = if way.path == MigrationPath::Host { rounds_wanted.unwrap_or(USUAL_ROUNDS) } else { 0 };
        let budgets = self.budgets(&found, &way.stays);
        let halves: Vec<_> = self.halves.iter().zip(budgets).collect();
        let copied = gpu_half::each(&halves, |(half, budget)| {
            let mut rounds = Vec::new();
            let pre_copy = self.copy_rounds(half, &store, (most, budget.as_deref()), &mut rounds)?;
            Ok((pre_copy, rounds))
        });
        let (pre_copy, rounds): (Vec<_>, Vec<_>) = copied?.into_iter().unzip();
        let last = self.stop_and_move(&store, &way, &pre_copy)?;
        let mut rounds = side_by_side(&rounds);
        rounds.push(last);
        Ok(MigrationOutcome { way: way.path, stopped_us: last.stopped_us, rounds })
    }
}

/// Rounds of each half, which went on at the same time, as those of the program.
fn side_by_side(of_halves: &[Vec<Round>]) -> Vec<Round> {
    let most = of_halves.iter().map(Vec::len).max().unwrap_or_default();
    let number = |number: usize| {
        let halves = || of_halves.iter().filter_map(move |rounds| rounds.get(number));
        Round {
            bytes: halves().map(|round| round.bytes).sum(),
            duration_us: halves().map(|round| round.duration_us).max().unwrap_or_default(),
            stopped_us: halves().map(|round| round.stopped_us).max().unwrap_or_default(),
        }
    };
    (0..most).map(number).collect()
}

/// The program goes on with the workers on the other GPU. Each comes with the one before it, if that is known.
fn arrive<'w>(
    sandbox: &Arc<Sandbox>,
    moving: &Moving,
    halves: impl IntoIterator<Item = (MovingProcess, Option<&'w Arc<Worker>>, &'w Arc<Worker>)>,
) {
    let (mut arrived, mut left) = (Vec::new(), Vec::new());
    for (process, source, target) in halves {
        target.set_client(process.pid);
        source.into_iter().for_each(|source| sandbox.give_up_worker(source));
        left.extend(source.cloned());
        arrived.push(target);
    }
    // From a context that has failed it has gone to another one.
    let happened = if sandbox.record().gpu == moving.gpu { "outlived" } else { "migrated" };
    events::tell(happened, |happened| {
        happened.sandbox = Some(sandbox.name());
        happened.gpu = Some(moving.gpu.clone());
    });
    // The next daemon must not take the end of a source for the loss of the program's memory.
    sandbox.note_outcome(|record| {
        record.gpu = moving.gpu.clone();
        record.moving = None;
        record.problem = None;
    });
    fault::pass("migrate-noted");
    // They would end by themselves; a driver takes its time for that.
    left.into_iter().for_each(|source| drop(std::thread::spawn(move || source.shut_down())));
    arrived.into_iter().for_each(|target| sandbox.leave_alone(target));
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
    let target = |process: MovingProcess| workers.iter().find(|worker| worker.number() == process.worker);
    let source = |process: MovingProcess| workers.iter().find(|worker| worker.client() == process.pid);
    let state = |worker: &Arc<Worker>| worker.status().ok();
    let is_open = |process| source(process).and_then(state).is_some_and(|status| status.parted);
    while moving.processes().any(is_open) && began.elapsed() < SETTLE_LIMIT {
        std::thread::sleep(LOOK);
    }
    let serves = |status: Status| status.client != 0 && !status.held_back;
    let is_there = |process| target(process).is_some_and(|target| state(target).is_some_and(serves));
    if moving.processes().any(is_there) {
        let arrived = moving.processes().filter(|process| is_there(*process));
        let rows = arrived.filter_map(|process| Some((process, source(process), target(process)?)));
        return arrive(sandbox, &moving, rows);
    }
    moving.processes().filter_map(target).for_each(|target| sandbox.end_worker(target));
    sandbox.note(|record| record.moving = None);
    sandbox.note_workers();
    sandbox.report_problem(if record.gpu == moving.gpu {
        STAYS.to_string()
    } else {
        let to = moving.gpu;
        format!("the daemon died while this was to move to {to}; it goes on where it was")
    });
}

/// Removes what moves of an earlier daemon have left, all of which are settled.
pub fn clear(paths: &Paths) {
    let _ = std::fs::remove_dir_all(paths.moving());
}
