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

use crate::claims::ClaimError;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::fault;
use crate::host::process::is_alive;
use crate::images::{ImageError, code, no_memory, preflight};
use crate::reply::Reply;
use crate::sandboxes::asleep::{SleepingGpu, SleepingProcess, forget};
use crate::sandboxes::traces::Tracing;
use crate::sandboxes::workers::WorkerTake;
use crate::sandboxes::{Operation, Sandbox, SandboxError};
use crate::sleep::descend::keepers_let_go;
use crate::sleep::{SleepError, report, word};
use crate::timeline::{GPU, Timeline};
use crate::workers::{Worker, WorkerError, gpu_half};

/// The part of a ring or board file that says how far each side has come.
const HEADER: [u8; 4096] = [0; 4096];

/// Wakes a sleeping GPU half.
pub fn wake(sandbox: &Arc<Sandbox>, reply: &Reply<'_>) -> Result<SleepReport> {
    reply.progress("wake", 0, 0);
    sandbox.call_off_descent();
    let operation = sandbox.begin_settled(State::Waking, "woken")?;
    wake_up(sandbox, operation)
}

/// Wakes the GPU half, if it sleeps.
fn wake_if_asleep(sandbox: &Arc<Sandbox>) -> Result<()> {
    if sandbox.record().asleep.is_none() {
        return Ok(());
    }
    sandbox.call_off_descent();
    let operation = sandbox.begin_settled(State::Waking, "woken")?;
    match wake_up(sandbox, operation) {
        Ok(_) | Err(Error::Sleep(SleepError::NotAsleep { .. })) => Ok(()),
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
            let began = match sandbox.call_off_descent() {
                true => sandbox.begin_settled(State::Waking, "woken"),
                false => sandbox.begin(State::Waking, "woken"),
            };
            match began.and_then(|operation| wake_up(&sandbox, operation)) {
                Ok(_)
                | Err(
                    Error::Claims(ClaimError::Sandbox { .. }) | Error::Sleep(SleepError::NotAsleep { .. }),
                ) => {}
                // Nobody needs a GPU any more.
                Err(Error::Sandboxes(
                    SandboxError::EndedMeanwhile { .. } | SandboxError::NotRunning { .. },
                )) => {}
                Err(error) => sandbox.report_problem(error.to_string()),
            }
        });
    }
    sandbox.wake_problem()
}

fn wake_up(sandbox: &Arc<Sandbox>, operation: Operation<'_>) -> Result<SleepReport> {
    let timeline = Timeline::begin();
    let name = sandbox.name();
    let asleep = sandbox.record().asleep.ok_or_else(|| SleepError::NotAsleep { name: name.clone() })?;
    let tracing = Tracing::begin(Traced::Wake, word(asleep.level));
    let load = sandbox.pool.begin_load();
    let sleepers = sleepers(sandbox, &asleep, &timeline).map_err(|error| operation.explain(error))?;
    sandbox.note_workers();
    let woken = bring_up(sandbox, &asleep, &sleepers, &timeline);
    match tracing.end(sandbox, &timeline, timeline.elapsed_us(), woken) {
        Ok(()) => {
            sandbox.set_wake_problem(None);
            // Nobody reads the image any more, which is removed now.
            let (woken, left): (Vec<_>, Vec<_>) = sleepers
                .into_iter()
                .map(|one| (one.keeper, (one.worker, one.process.pid)))
                .partition(|(keeper, _)| keeper.is_some());
            let heirs = woken.iter().map(|(_, (worker, pid))| (worker, *pid));
            is_awake(sandbox, &asleep, heirs, woken.iter().filter_map(|(keeper, _)| keeper.as_ref()));
            // Those of processes that have ended meanwhile.
            left.iter().for_each(|(_, (worker, _))| sandbox.end_worker(worker));
            load.end_later();
        }
        Err(error) => {
            sleepers.iter().for_each(|one| sandbox.end_worker(&one.worker));
            let error = operation.explain(error);
            let missing = error.missing_gpu_memory();
            let reason = match error {
                ended @ Error::Sandboxes(SandboxError::EndedMeanwhile { .. }) => return Err(ended),
                Error::Images(ImageError::CannotRestore { reason, .. }) => reason,
                Error::Images(ImageError::NoGpuMemory { needed, free, gpu, .. }) => {
                    no_memory(needed, free, &gpu)
                }
                other => other.to_string(),
            };
            sandbox.set_wake_problem(Some(reason.clone()));
            return Err(SleepError::CannotWake { name, reason, missing }.into());
        }
    }
    drop(operation);
    log::info!("the GPU half of {name:?} is awake");
    Ok(report(sandbox, asleep.level, asleep.bytes, &timeline))
}

/// A process whose GPU half is to wake.
pub(super) struct Sleeper {
    pub process: SleepingProcess,
    /// The half that it has of what sleeps.
    image: Image,
    /// None where the process has ended meanwhile: others may have memory of it.
    keeper: Option<Arc<Worker>>,
    /// What takes the keeper's place.
    pub worker: Arc<Worker>,
}

/// All of a program, each with a worker; those of processes that have ended only if others are there.
pub(super) fn sleepers(
    sandbox: &Arc<Sandbox>,
    asleep: &SleepingGpu,
    timeline: &Timeline,
) -> Result<Vec<Sleeper>> {
    let image = Image::open(&asleep.image)?;
    let workers = sandbox.live_workers();
    let keeper =
        |process: &SleepingProcess| workers.iter().find(|worker| worker.client() == process.pid).cloned();
    let processes: Vec<_> =
        asleep.processes().into_iter().map(|process| (keeper(&process), process)).collect();
    let lost = |(keeper, process): &(Option<_>, SleepingProcess)| keeper.is_none() && is_alive(process.pid);
    if processes.iter().all(|(keeper, _)| keeper.is_none()) || processes.iter().any(lost) {
        let how = "what kept it while it slept has ended".to_string();
        // It ends with its program.
        return Err(SandboxError::WorkerDead { name: sandbox.name(), how }.into());
    }
    // What was left on the GPU is gone with its keeper, and others have kept what they use of it.
    let is_kept = |keeper: &Option<_>| keeper.is_some() || asleep.level != Level::Gpu;
    let mut sleepers = Vec::new();
    for (keeper, process) in processes.into_iter().filter(|(keeper, _)| is_kept(keeper)) {
        let taken = image.half(process.client.process).map_err(Error::from).and_then(|image| {
            let slice = keeper.as_ref().and_then(|keeper| keeper.slice());
            let worker = timeline.time("take a worker", || {
                let (wanted, shares_past) = (sandbox.take_waker(), code::shares_past(&image));
                sandbox.take_worker_on(&sandbox.record().gpu, WorkerTake { wanted, slice, shares_past })
            })?;
            Ok((image, worker))
        });
        match taken {
            Ok((image, worker)) => sleepers.push(Sleeper { process, image, keeper, worker }),
            Err(error) => {
                sleepers.iter().for_each(|one: &Sleeper| sandbox.end_worker(&one.worker));
                return Err(error);
            }
        }
    }
    Ok(sleepers)
}

fn bring_up(
    sandbox: &Sandbox,
    asleep: &SleepingGpu,
    sleepers: &[Sleeper],
    timeline: &Timeline,
) -> Result<()> {
    let Some(first) = sleepers.first() else { return Ok(()) };
    let status = timeline.lane(GPU).time("worker start", || first.worker.first_status())?;
    let image = Image::open(&asleep.image)?;
    let place = (&sandbox.pool, &*sandbox.record().gpu);
    let (status, _held) = preflight::wait_for_room(place, &first.worker, &image, status)?;
    preflight::check_gpus(&image, &status)?;
    // Contents too: the keepers are there until nothing more can go wrong.
    let clients = gpu_half::each(sleepers, |one| {
        bring_half(sandbox, one, timeline).inspect_err(|_| {
            // Others may wait for memory of this one.
            if sleepers.len() > 1 {
                sleepers.iter().for_each(|one| one.worker.kill());
            }
        })
    })?;
    fault::point("wake-restored")?;
    for (one, client) in sleepers.iter().zip(&clients) {
        let Some(client) = client else { continue };
        let SleepingProcess { client: known, pid } = &one.process;
        gpu_half::adopt(&one.worker, *pid, known.driver_attached, client.as_fd())?;
    }
    fault::point("wake-adopted")?;
    // Of one that has ended meanwhile it is known now, while all can sleep on.
    gpu_half::each(sleepers, |one| one.worker.status())?;
    let mut goes_on = false;
    for one in sleepers.iter().filter(|one| one.keeper.is_some()) {
        let attached = one.process.client.driver_attached;
        let resumed = timeline
            .time("resume", || gpu_half::resume(&one.worker, true, attached))
            .and_then(|()| fault::point("wake-resumed"));
        match resumed {
            // It has the word, and goes on when it comes to read it: it may be stopped by a signal. And where one of several has
            // gone on, none goes back to sleep.
            Err(error) if goes_on || one.worker.ended().is_none() => {
                sandbox.report_problem(error.to_string())
            }
            other => other?,
        }
        goes_on = true;
    }
    Ok(())
}

/// Has a worker take the place of a keeper, but for its client's socket, which is returned.
pub(super) fn bring_half(sandbox: &Sandbox, one: &Sleeper, timeline: &Timeline) -> Result<Option<OwnedFd>> {
    let Sleeper { process, image, keeper, worker } = one;
    worker.first_status()?;
    clear_rings(&sandbox.run_directory, &process.client)?;
    let hand_over = |keeper: &Arc<Worker>| timeline.lane(GPU).time("hand over", || pass_on(keeper, worker));
    let client = keeper.as_ref().map(hand_over).transpose()?;
    fault::point("wake-begun")?;
    let start_us = timeline.elapsed_us();
    let restored = gpu_half::restore(worker, image, &sandbox.run_directory, Vec::new())?;
    timeline.lane(GPU).merge(start_us, restored);
    timeline.lane(GPU).merge(start_us, gpu_half::loaded(worker, None)?);
    Ok(client)
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
        worker.ask("take over memory", ask::Memory { names, copy: false, stays: Vec::new() }, &memory)?;
    }
    let action = "hand the sleeping program over";
    client.ok_or_else(|| WorkerError::Failed { action, reason: "it has no client".to_string() }.into())
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

/// New workers serve the clients of these pids: the keepers and what they kept are not needed any more.
fn is_awake<'w>(
    sandbox: &Sandbox,
    asleep: &SleepingGpu,
    heirs: impl IntoIterator<Item = (&'w Arc<Worker>, i32)>,
    keepers: impl IntoIterator<Item = &'w Arc<Worker>>,
) {
    take_place(sandbox, heirs, keepers);
    sandbox.note_with_workers(|record| {
        record.asleep = None;
        record.problem = None;
    });
    forget(&asleep.store, &sandbox.id);
}

/// Ends keepers whose clients have new workers. The record says so first: the next daemon must not take the end of a keeper for
/// the loss of its client's memory.
fn take_place<'w>(
    sandbox: &Sandbox,
    heirs: impl IntoIterator<Item = (&'w Arc<Worker>, i32)>,
    keepers: impl IntoIterator<Item = &'w Arc<Worker>>,
) {
    heirs.into_iter().for_each(|(worker, pid)| worker.set_client(pid));
    let keepers: Vec<_> = keepers.into_iter().collect();
    for keeper in &keepers {
        // No other process is to find it free.
        keeper.set_followed(true);
        keeper.set_client(0);
    }
    sandbox.note_workers();
    fault::pass("wake-noted");
    keepers.into_iter().for_each(|keeper| sandbox.end_worker(keeper));
    fault::pass("wake-kept-ended");
}

/// After a daemon died: finds out whether the GPU half of a program that was to sleep, or to wake, does.
pub fn settle(daemon: &Daemon, sandbox: &Arc<Sandbox>) {
    let Some(asleep) = sandbox.record().asleep else { return };
    let states: Vec<_> = sandbox
        .live_workers()
        .into_iter()
        .filter_map(|worker| Some((worker.status().ok()?, worker)))
        .collect();
    let (keepers, others): (Vec<_>, Vec<_>) = states.into_iter().partition(|(status, _)| status.asleep);
    if keepers.is_empty() {
        // The workers have undone what did not come to its end.
        sandbox.note(|record| record.asleep = None);
        return forget(&asleep.store, &sandbox.id);
    }
    let serves = |status: &Status, pid: i32| status.client == pid && pid != 0 && !status.held_back;
    let heir = |pid| others.iter().find(|(status, _)| serves(status, pid)).map(|(_, worker)| (worker, pid));
    let keepers: Vec<_> = keepers.iter().map(|(_, keeper)| keeper).collect();
    let heirs: Vec<_> = asleep.processes().into_iter().filter_map(|process| heir(process.pid)).collect();
    // One whose client has been noted as another's already has none.
    let sleeps = |keeper: &&Arc<Worker>| keeper.client() != 0 && heir(keeper.client()).is_none();
    let (left, done): (Vec<_>, Vec<_>) = keepers.into_iter().partition(sleeps);
    if left.is_empty() {
        return is_awake(sandbox, &asleep, heirs, done);
    }
    if !done.is_empty() {
        take_place(sandbox, heirs, done);
    }
    // Some sleep on, until they are called for.
    let pids: Vec<i32> = left.iter().map(|keeper| keeper.client()).collect();
    sandbox.note(|record| record.asleep = asleep.of(&pids).or(record.asleep.take()));
    let idle = others.iter().filter(|(status, _)| !serves(status, status.client));
    idle.for_each(|(_, worker)| sandbox.end_worker(worker));
    sandbox.note_workers();
    if asleep.level != Level::Gpu {
        keepers_let_go(sandbox);
    }
    match Image::open(&asleep.image) {
        Ok(image) if asleep.level == Level::Host && asleep.others.is_empty() => {
            daemon.start_waker(sandbox, image.path());
        }
        Ok(_) => {}
        Err(error) => sandbox.report_problem(format!("what sleeps of it cannot be woken: {error}")),
    }
}
