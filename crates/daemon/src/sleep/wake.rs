//! Getting a GPU again for a program whose GPU half [sleeps](crate::sleep): because somebody asks, or because the program
//! itself knocks at the admission socket.
//!
//! A fresh worker takes over what the keeper has. Until it lets the client go on, it can be ended without loss.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rekindle_protocol::client::Quiesced;
use rekindle_protocol::daemon::{Level, Operation as Traced, SleepReport, State};
use rekindle_protocol::worker::{Status, ask};
use rekindle_store::Image;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::fault;
use crate::images::preflight;
use crate::reply::Reply;
use crate::sandboxes::asleep::{Asleep, forget};
use crate::sandboxes::traces::Tracing;
use crate::sandboxes::{Operation, Sandbox};
use crate::sleep::{report, word};
use crate::timeline::{GPU, Timeline};
use crate::workers::{Worker, gpu_half};

/// The part of a ring or board file that says how far each side has come.
const HEADER: [u8; 4096] = [0; 4096];

/// Wakes a sleeping GPU half.
pub fn wake(sandbox: &Arc<Sandbox>, reply: &Reply<'_>) -> Result<SleepReport> {
    reply.progress("wake", 0, 0);
    let operation = sandbox.begin_settled(State::Waking, "woken")?;
    wake_up(sandbox, operation)
}

/// Wakes the GPU half, if it sleeps.
fn wake_if_asleep(sandbox: &Arc<Sandbox>) -> Result<()> {
    if sandbox.record().asleep.is_none() {
        return Ok(());
    }
    let operation = sandbox.begin_settled(State::Waking, "woken")?;
    match wake_up(sandbox, operation) {
        Ok(_) | Err(Error::NotAsleep { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Begins an operation on a program that has its GPU half, and wakes that if it sleeps.
pub fn begin_awake<'a>(
    sandbox: &'a Arc<Sandbox>,
    state: State,
    wanted: &'static str,
) -> Result<Operation<'a>> {
    loop {
        wake_if_asleep(sandbox)?;
        let operation = sandbox.begin_settled(state, wanted)?;
        if sandbox.record().asleep.is_none() {
            return Ok(operation);
        }
    }
}

/// A process that has a worker knocks at the admission socket: its GPU half is woken beside the caller's work. Returns why that
/// failed the last time, if it did.
pub fn knocked(sandbox: &Arc<Sandbox>) -> Option<String> {
    if sandbox.record().asleep.is_some() {
        let sandbox = sandbox.clone();
        std::thread::spawn(move || {
            let began = sandbox.begin(State::Waking, "woken");
            match began.and_then(|operation| wake_up(&sandbox, operation)) {
                Ok(_) | Err(Error::Occupied { .. } | Error::NotAsleep { .. }) => {}
                // Nobody needs a GPU any more.
                Err(Error::EndedMeanwhile { .. } | Error::NotRunning { .. }) => {}
                Err(error) => sandbox.report_problem(error.to_string()),
            }
        });
    }
    sandbox.wake_problem()
}

fn wake_up(sandbox: &Arc<Sandbox>, operation: Operation<'_>) -> Result<SleepReport> {
    let timeline = Timeline::begin();
    let name = sandbox.name();
    let asleep = sandbox.record().asleep.ok_or_else(|| Error::NotAsleep { name: name.clone() })?;
    let tracing = Tracing::begin(Traced::Wake, word(asleep.level));
    let keeper = sandbox.live_workers().into_iter().find(|worker| worker.client() == asleep.pid);
    let keeper = keeper.ok_or_else(|| {
        let how = "what kept it while it slept has ended".to_string();
        // It ends with its program.
        operation.explain(Error::WorkerDead { name: name.clone(), how })
    })?;
    let image = Image::open(&asleep.image)?;
    let worker = timeline.time("take a worker", || sandbox.take_worker(sandbox.take_waker()))?;
    sandbox.note_workers();
    let woken = bring_up(sandbox, &asleep, &image, &keeper, &worker, &timeline);
    drop(image);
    match tracing.end(sandbox, &timeline, timeline.elapsed_us(), woken) {
        Ok(()) => {
            sandbox.set_wake_problem(None);
            is_awake(sandbox, &asleep, &keeper, &worker);
            sandbox.fill_pool_later();
        }
        Err(error) => {
            sandbox.end_worker(&worker);
            sandbox.fill_pool();
            let reason = match operation.explain(error) {
                ended @ Error::EndedMeanwhile { .. } => return Err(ended),
                Error::CannotRestore { reason, .. } => reason,
                other => other.to_string(),
            };
            sandbox.set_wake_problem(Some(reason.clone()));
            return Err(Error::CannotWake { name, reason });
        }
    }
    drop(operation);
    log::info!("the GPU half of {name:?} is awake");
    Ok(report(sandbox, asleep.level, asleep.bytes, &timeline))
}

fn bring_up(
    sandbox: &Sandbox,
    asleep: &Asleep,
    image: &Image,
    keeper: &Worker,
    worker: &Worker,
    timeline: &Timeline,
) -> Result<()> {
    let status = timeline.lane(GPU).time("worker start", || worker.first_status())?;
    preflight::check_gpus(image, &status)?;
    clear_rings(&sandbox.run_directory, &asleep.client)?;
    let client = timeline.lane(GPU).time("hand over", || pass_on(keeper, worker))?;
    fault::point("wake-begun")?;
    let start_us = timeline.elapsed_us();
    let restored = gpu_half::restore(worker, image, &sandbox.run_directory, Vec::new())?;
    timeline.lane(GPU).merge(start_us, restored);
    // Contents too: the keeper is there until nothing more can go wrong.
    timeline.lane(GPU).merge(start_us, gpu_half::loaded(worker, None)?);
    fault::point("wake-restored")?;
    let driver_attached = asleep.client.driver_attached;
    gpu_half::adopt(worker, asleep.pid, driver_attached, client.as_fd())?;
    fault::point("wake-adopted")?;
    let resumed = timeline
        .time("resume", || gpu_half::resume(worker, true, driver_attached))
        .and_then(|()| fault::point("wake-resumed"));
    match resumed {
        // It has the word, and goes on when it comes to read it: it may be stopped by a signal.
        Err(error) if worker.ended().is_none() => sandbox.report_problem(error.to_string()),
        other => other?,
    }
    Ok(())
}

/// Passes what the keeper keeps on to the worker, but for the client's socket, which is returned.
fn pass_on(keeper: &Worker, worker: &Worker) -> Result<OwnedFd> {
    let (mut from, mut client) = (0, None);
    loop {
        let (mut names, mut descriptors) = keeper.hand_over(from)?;
        if names.is_empty() {
            break;
        }
        from += names.len();
        if client.is_none() {
            names.remove(0);
            client = Some(descriptors.remove(0));
        }
        let memory: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        worker.ask("take over memory", ask::Memory { names, copy: false }, &memory)?;
    }
    let action = "hand the sleeping program over";
    client.ok_or_else(|| Error::Worker { action, reason: "it has no client".to_string() })
}

/// Makes the files that both sides meet in as new; nobody uses them.
fn clear_rings(run_directory: &Path, client: &Quiesced) -> Result<()> {
    let shared = |name: &&String| name.starts_with("ring-") || name.starts_with("board-");
    for name in client.files.iter().map(|(name, _)| name).filter(shared) {
        let path = run_directory.join(name);
        let cleared = OpenOptions::new().write(true).open(&path);
        cleared
            .and_then(|file| file.write_all_at(&HEADER, 0))
            .map_err(|source| Error::io("write", &path, source))?;
    }
    Ok(())
}

/// The new worker serves the client: the keeper and what it kept are not needed any more.
fn is_awake(sandbox: &Sandbox, asleep: &Asleep, keeper: &Worker, worker: &Worker) {
    worker.set_client(asleep.pid);
    sandbox.end_worker(keeper);
    sandbox.note(|record| {
        record.asleep = None;
        record.problem = None;
    });
    sandbox.note_workers();
    forget(&asleep.store, &sandbox.id);
}

/// After a daemon died: finds out whether the GPU half of a program that was to sleep, or to wake, does.
pub fn settle(daemon: &Daemon, sandbox: &Arc<Sandbox>) {
    let Some(asleep) = sandbox.record().asleep else { return };
    let workers = sandbox.live_workers();
    let state = |worker: &Arc<Worker>| worker.status().ok();
    let keeper = workers.iter().find(|worker| state(worker).is_some_and(|status| status.asleep));
    let Some(keeper) = keeper else {
        // The worker has undone what did not come to its end.
        sandbox.note(|record| record.asleep = None);
        return forget(&asleep.store, &sandbox.id);
    };
    let others = || workers.iter().filter(|worker| !Arc::ptr_eq(worker, keeper));
    let serves = |status: Status| status.client != 0 && !status.held_back;
    match others().find(|worker| state(worker).is_some_and(serves)) {
        Some(worker) => is_awake(sandbox, &asleep, keeper, worker),
        None => {
            others().for_each(|worker| sandbox.end_worker(worker));
            sandbox.note_workers();
            match Image::open(&asleep.image) {
                Ok(image) if asleep.level == Level::Host => daemon.start_waker(sandbox, image.path()),
                Ok(_) => {}
                Err(error) => sandbox.report_problem(format!("what sleeps of it cannot be woken: {error}")),
            }
        }
    }
}
