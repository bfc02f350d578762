//! What is done to the GPU half of a process, which a worker has: the same steps for a checkpoint, a restore, sleep, a
//! replacement and a container. A program has one for [each](each) of its processes that use a GPU.
//!
//! ```text
//!   Quiesce ─ save ─ (frozen) save_pinned ─ resume                 restore ─ adopt ─ resume ─ loaded
//! ```

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use rekindle_protocol::worker::{Cached, Contents, Parted, Phase, Saved, ask};
use rekindle_store::{Image, Part};

use crate::error::Result;
use crate::timeline::{GPU, Lane, PINNED, Timeline};
use crate::workers::WorkerError;

use super::Worker;

/// How long detaching the driver from a running program may take.
const RELEASE_LIMIT_MS: u32 = 10_000;

/// Writes the code that is loaded into an image in the making, while the program runs: [`save`] finds it there.
pub fn save_code(worker: &Worker, staging: &Path) -> Result<()> {
    worker.ask("save its code", ask::SaveCode { staging: text(staging) }, &[])
}

/// Does a step with each half of a program, side by side. All have come to their end when this returns; the first failure is
/// told.
pub fn each<'h, H: Sync, T: Send>(
    halves: &'h [H],
    step: impl Fn(&'h H) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let [first, others @ ..] = halves else { return Ok(Vec::new()) };
    let step = &step;
    std::thread::scope(|scope| {
        let others: Vec<_> = others.iter().map(|half| scope.spawn(move || step(half))).collect();
        let first = step(first);
        let join = |thread: ScopedJoinHandle<'_, Result<T>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        std::iter::once(first).chain(others.into_iter().map(join)).collect()
    })
}

/// Detaches the driver half of one of `processes` (pids inside and ours) while the program runs, if that can be done.
pub fn release(worker: &Worker, processes: &[(i32, i32)], timeline: &Timeline) -> Result<()> {
    let request = ask::Release { processes: processes.to_vec(), limit_ms: RELEASE_LIMIT_MS };
    let start_us = timeline.elapsed_us();
    if worker.ask("detach the driver from the running program", request, &[])? {
        timeline.lane(GPU).note("release", start_us, timeline.elapsed_us() - start_us, 0);
    }
    Ok(())
}

/// Writes what it can of GPU memory into an image in the making, while the program runs.
pub fn save_ahead(worker: &Worker, staging: &Path, timeline: &Timeline) -> Result<()> {
    let (action, start_us) = ("write GPU memory ahead", timeline.elapsed_us());
    let phases = worker.ask_within(action, ask::SaveAhead { staging: text(staging) }, &[], None)?;
    timeline.lane(GPU).merge(start_us, phases);
    Ok(())
}

/// Writes the GPU half into an image in the making; what is shadowed is written by [`drain`].
pub fn save(worker: &Worker, staging: &Path, contents: Contents, timeline: &Timeline) -> Result<Vec<Part>> {
    let (action, start_us) = ("save the GPU half", timeline.elapsed_us());
    let mut saved = worker.ask(action, ask::Save { staging: text(staging), contents }, &[])?;
    timeline.note_memory(saved.memory.take());
    timeline.note_wait(saved.waited.take());
    parts(action, saved, &timeline.lane(GPU), start_us)
}

/// Waits until all that was shadowed is in the image, too. `saved_us`: when that was asked for. The program may have the machine
/// to itself first, for as long as what is new takes to be written, and for `catch_up` at most.
pub fn drain(worker: &Worker, saved_us: u64, catch_up: Duration, timeline: &Timeline) -> Result<Vec<Part>> {
    let action = "write GPU memory to the image";
    let request = ask::Drain { wanted: true, catch_up_us: catch_up.as_micros() as u64 };
    let drained = worker.ask_within(action, request, &[], None)?;
    if drained.overwritten {
        return Err(WorkerError::Overwritten.into());
    }
    parts(action, drained, &timeline.lane(GPU), saved_us)
}

/// What was shadowed is not wanted any more.
pub fn give_up_drain(worker: &Worker) -> Result<()> {
    worker.ask("give up a copy of GPU memory", ask::Drain { wanted: false, catch_up_us: 0 }, &[]).map(drop)
}

/// Writes pinned memory into it. Only while the program is frozen.
pub fn save_pinned(worker: &Worker, staging: &Path, timeline: &Timeline) -> Result<Vec<Part>> {
    let (action, start_us) = ("save pinned memory", timeline.elapsed_us());
    let saved = worker.ask(action, ask::SavePinned { staging: text(staging) }, &[])?;
    parts(action, saved, &timeline.lane(PINNED), start_us)
}

fn parts(action: &'static str, saved: Saved, lane: &Lane<'_>, start_us: u64) -> Result<Vec<Part>> {
    lane.merge(start_us, saved.phases);
    let parse = |part| {
        serde_json::from_value(part).map_err(|error| {
            WorkerError::Failed { action, reason: format!("it described a part that is none: {error}") }
                .into()
        })
    };
    saved.parts.into_iter().map(parse).collect()
}

/// Has a worker take the state of an image's GPU half; contents go on loading.
pub fn restore(
    worker: &Worker,
    image: &Image,
    run_directory: &Path,
    cached: Vec<Cached>,
) -> Result<Vec<Phase>> {
    take(worker, image, run_directory, cached, Client::Comes)
}

/// As [`restore`], of a program that stands still beside, with another worker.
pub fn restore_beside(
    worker: &Worker,
    image: &Image,
    run_directory: &Path,
    cached: Vec<Cached>,
) -> Result<Vec<Phase>> {
    take(worker, image, run_directory, cached, Client::StandsStill)
}

/// As [`restore_beside`], of a program that runs meanwhile: its requests wait.
pub fn restore_beside_running(worker: &Worker, image: &Image, run_directory: &Path) -> Result<Vec<Phase>> {
    take(worker, image, run_directory, Vec::new(), Client::Runs)
}

/// The client of a half that is restored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Client {
    /// It is restored too.
    Comes,
    /// Another worker has it, and it stands still, or runs.
    StandsStill,
    Runs,
}

fn take(
    worker: &Worker,
    image: &Image,
    run_directory: &Path,
    cached: Vec<Cached>,
    client: Client,
) -> Result<Vec<Phase>> {
    worker.tell_owner()?;
    let (image, run_directory) = (text(image.path()), text(run_directory));
    let (beside, runs) = (client != Client::Comes, client == Client::Runs);
    worker.ask("restore the GPU half", ask::Restore { image, run_directory, cached, beside, runs }, &[])
}

/// Has a worker whose context has failed hold its client, which is at rest, until [`part`] or [`resume`].
pub fn leave(worker: &Worker) -> Result<()> {
    worker.ask("hold a program at rest", ask::Leave {}, &[])
}

/// Has a worker part with its client, of which nothing is under way: the client's socket, and where it goes on. Who has the
/// client then is told by the pipes: its own, and one for all halves of the program, if it has several.
pub fn part(worker: &Worker, pipes: &[BorrowedFd<'_>]) -> Result<(OwnedFd, Parted)> {
    let action = "part with the program";
    let (parted, descriptors) = worker.ask_whole(action, ask::Part {}, pipes, None)?;
    let client = descriptors.into_iter().next();
    let reason = || "it did not send the client's socket".to_string();
    Ok((client.ok_or_else(|| WorkerError::Failed { action, reason: reason() })?, parted))
}

/// Gives a worker the client of another one: its socket, the pipe's other end, and what all halves are told by, if there are
/// several.
pub fn take_over(
    worker: &Worker,
    pid: i32,
    Parted { next, driver_attached }: Parted,
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    let request = ask::TakeOver { pid, driver_attached, next };
    worker.ask("take the program over", request, descriptors)
}

/// As [`restore`], in place of a worker that died before it had loaded all.
pub fn replace(worker: &Worker, image: &Image, run_directory: &Path) -> Result<Vec<Phase>> {
    worker.tell_owner()?;
    let request = ask::Replace { image: text(image.path()), run_directory: text(run_directory) };
    worker.ask("restore the GPU half once more", request, &[])
}

/// Waits until all contents are loaded.
pub fn loaded(worker: &Worker, limit: Option<Duration>) -> Result<Vec<Phase>> {
    worker.ask_within("load GPU memory", ask::Loaded {}, &[], limit)
}

/// Gives a worker the client of the half that it has restored.
pub fn adopt(worker: &Worker, pid: i32, driver_attached: bool, client: BorrowedFd<'_>) -> Result<()> {
    worker.ask("take the program over", ask::Adopt { pid, driver_attached }, &[client])
}

/// Lets the client go on.
pub fn resume(worker: &Worker, restored: bool, driver_attached: bool) -> Result<()> {
    worker.ask("let the program's GPU work go on", ask::Resume { restored, driver_attached }, &[])
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
