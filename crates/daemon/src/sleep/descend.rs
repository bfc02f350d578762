//! A GPU half that sleeps goes down a level, and is not woken for that.
//!
//! ```text
//!   keeper        ── keeps its client's socket all the while ─────────────────────────────▶
//!                 HandOver (copies) ┐                                      ┌ LetGo: the memory
//!   fresh worker            Restore ┴ StandStill ─ Save ─ ends             │
//!   the record    level gpu ───────────────────────────────── level host ──┘ old contents go
//! ```
//!
//! From level `gpu` a fresh worker takes what the keeper has beside it, and saves that as if its program stood still there. From
//! `host` to `disk` the contents are copied, without a GPU. What was there before goes once the record says where the other lies:
//! so the program sleeps at one of both levels, and wakes from it, whatever ends in between. Who wants it awake
//! [calls it off](Sandbox::call_off_descent).

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rekindle_protocol::daemon::{Level, SleepReport};
use rekindle_protocol::worker::{Contents, ask};
use rekindle_store::{Image, Store};

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::fault;
use crate::images::{machine, preflight};
use crate::reply::Reply;
use crate::sandboxes::asleep::{SleepingGpu, forget};
use crate::sandboxes::descent::DescentGuard;
use crate::sandboxes::standstill;
use crate::sandboxes::traces::Tracing;
use crate::sandboxes::{Operation, Sandbox, SandboxError};
use crate::sleep::wake::{Sleeper, bring_half, sleepers};
use crate::sleep::{SleepError, check_room, report, word};
use crate::timeline::{GPU, Timeline};
use crate::workers::gpu_half;

/// Takes what sleeps to a lower level.
pub(super) fn descend(
    daemon: &Daemon,
    sandbox: &Arc<Sandbox>,
    (asleep, level): (&SleepingGpu, Level),
    operation: Operation<'_>,
    (timeline, tracing): (Timeline, Tracing),
    reply: &Reply<'_>,
) -> Result<SleepReport> {
    let name = sandbox.name();
    let root = daemon.paths.asleep(level);
    let descent = sandbox.begin_descent();
    let moved = check_room(&daemon.paths, sandbox, level, asleep.bytes).and_then(|()| {
        forget(&root, &sandbox.id);
        match asleep.level {
            Level::Gpu => from_gpu(sandbox, asleep, (level, &root), &descent, &timeline, reply),
            _ => from_memory(sandbox, asleep, (level, &root), &descent, &timeline, reply),
        }
    });
    let moved = moved.map_err(|error| match operation.explain(error) {
        ended @ Error::Sandboxes(SandboxError::EndedMeanwhile { .. }) => ended,
        _ if descent.is_called_off() => SleepError::CalledOff { name: name.clone() }.into(),
        error => {
            let missing = error.missing_gpu_memory();
            let from = word(asleep.level);
            SleepError::CannotGoDown { name: name.clone(), from, reason: error.to_string(), missing }.into()
        }
    });
    drop(descent);
    match &moved {
        Ok(image) if level == Level::Host && asleep.others.is_empty() => daemon.start_waker(sandbox, image),
        _ => {}
    }
    drop(operation);
    if let Err(error) = tracing.end(sandbox, &timeline, 0, moved) {
        // What the record does not name.
        if sandbox.record().asleep.is_none_or(|asleep| asleep.store != root) {
            forget(&root, &sandbox.id);
        }
        return Err(error);
    }
    daemon.pool.prepare(&sandbox.record().gpu);
    log::info!("the GPU half of {name:?} sleeps on ({})", word(level));
    Ok(report(sandbox, level, asleep.bytes, &timeline))
}

/// By workers that take what the keepers have, and let go of it again.
fn from_gpu(
    sandbox: &Arc<Sandbox>,
    asleep: &SleepingGpu,
    (level, root): (Level, &Path),
    descent: &DescentGuard<'_>,
    timeline: &Timeline,
    reply: &Reply<'_>,
) -> Result<PathBuf> {
    reply.progress("take over", 0, 0);
    let sleepers = sleepers(sandbox, asleep, timeline)?;
    descent.by(sleepers.iter().map(|one| one.worker.clone()).collect());
    sandbox.note_workers();
    let saved = save(sandbox, asleep, (&sleepers, root), timeline, reply);
    let noted = saved.and_then(|image| {
        let pids: Vec<i32> = sleepers.iter().map(|one| one.process.pid).collect();
        let left = asleep.of(&pids).unwrap_or_else(|| asleep.clone());
        note(sandbox, left, (level, root), &image).map(|()| image)
    });
    sleepers.iter().for_each(|one| sandbox.end_worker(&one.worker));
    sandbox.note_workers();
    // They hold what is removed below.
    drop(sleepers);
    let image = noted?;
    keepers_let_go(sandbox);
    fault::pass("down-let-go");
    forget(&asleep.store, &sandbox.id);
    Ok(image)
}

fn save(
    sandbox: &Sandbox,
    asleep: &SleepingGpu,
    (sleepers, root): (&[Sleeper], &Path),
    timeline: &Timeline,
    reply: &Reply<'_>,
) -> Result<PathBuf> {
    let Some(first) = sleepers.first() else {
        return Err(SleepError::NotAsleep { name: sandbox.name() }.into());
    };
    let status = timeline.lane(GPU).time("worker start", || first.worker.first_status())?;
    preflight::check_gpus(&Image::open(&asleep.image)?, &status)?;
    fault::point("down-begun")?;
    // The clients' sockets stay with the keepers.
    gpu_half::each(sleepers, |one| {
        bring_half(sandbox, one, timeline).inspect_err(|_| {
            if sleepers.len() > 1 {
                sleepers.iter().for_each(|one| one.worker.kill());
            }
        })
    })?;
    fault::point("down-restored")?;
    let workers: Vec<_> = sleepers.iter().map(|one| one.worker.clone()).collect();
    gpu_half::each(&workers, |worker| worker.ask("stand still", ask::StandStill {}, &[]))?;
    reply.progress("save", 0, 0);
    let draft = Store::open(root)?.begin(&sandbox.id)?;
    let halves: Vec<u32> = match sleepers {
        [_] => Vec::new(),
        several => several.iter().map(|one| one.process.client.process).collect(),
    };
    let places = match &halves[..] {
        [] => vec![draft.path().to_path_buf()],
        several => several.iter().map(|process| draft.half_path(*process)).collect(),
    };
    draft.adopt(standstill::save(&workers, &places, Contents::Saved, timeline)?)?;
    {
        let mut manifest = draft.manifest();
        manifest.gpus = machine::gpus(&status);
        manifest.halves = halves;
    }
    let image = timeline.time("commit", || draft.commit())?;
    fault::point("down-saved")?;
    Ok(image.path().to_path_buf())
}

/// Copies what lies in one store to another.
fn from_memory(
    sandbox: &Arc<Sandbox>,
    asleep: &SleepingGpu,
    (level, root): (Level, &Path),
    descent: &DescentGuard<'_>,
    timeline: &Timeline,
    reply: &Reply<'_>,
) -> Result<PathBuf> {
    reply.progress("copy", 0, 0);
    fault::point("down-begun")?;
    let image = timeline.time("copy", || copy(&Image::open(&asleep.image)?, root, &sandbox.id, descent))?;
    fault::point("down-saved")?;
    note(sandbox, asleep.clone(), (level, root), image.path())?;
    // It has the memory pinned.
    sandbox.end_waker();
    fault::pass("down-let-go");
    forget(&asleep.store, &sandbox.id);
    Ok(image.path().to_path_buf())
}

fn copy(image: &Image, root: &Path, id: &str, descent: &DescentGuard<'_>) -> Result<Image> {
    let incoming = Store::open(root)?.receive(&image.manifest_text()?, id)?;
    let wanted = incoming.wanted().to_vec();
    let (reader, writer) = io::pipe().map_err(|source| Error::system("make a pipe", source))?;
    std::thread::scope(|scope| {
        let send = scope.spawn(|| image.send(&wanted, Until { writer, descent }, &|_, _| {}));
        let taken = incoming.take(reader, &|_| None);
        let sent = send.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // If either fails the other does too, and knows less.
        match (taken, sent) {
            (Ok((image, _)), _) => Ok(image),
            (Err(rekindle_store::Error::BadTransfer { .. }), Err(error)) => Err(error.into()),
            (Err(error), _) => Err(error.into()),
        }
    })
}

/// Fails once the descent is called off.
struct Until<'a, W> {
    writer: W,
    descent: &'a DescentGuard<'a>,
}

impl<W: Write> Write for Until<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.descent.is_called_off() {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => self.writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// From now on it sleeps at the lower level.
fn note(sandbox: &Sandbox, asleep: SleepingGpu, (level, root): (Level, &Path), image: &Path) -> Result<()> {
    let (store, image) = (root.to_path_buf(), image.to_path_buf());
    sandbox.update(|record| record.asleep = Some(SleepingGpu { level, store, image, ..asleep }))?;
    fault::pass("down-noted");
    Ok(())
}

/// Gives memory back whose contents lie elsewhere.
pub(super) fn keepers_let_go(sandbox: &Sandbox) {
    for keeper in sandbox.live_workers() {
        let told = keeper.ask("let go of GPU memory", ask::LetGo {}, &[]);
        if let Err(error) = told.or_else(|error| if keeper.ended().is_some() { Ok(()) } else { Err(error) }) {
            log::warn!("GPU memory of {:?} is not given back: {error}", sandbox.name());
        }
    }
}
