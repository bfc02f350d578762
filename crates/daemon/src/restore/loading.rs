//! What a restore leaves to be done beside the running program: contents of GPU buffers.
//!
//! The program's requests wait in the worker until they are there. If they cannot be loaded, the program is ended and
//! its sandbox says which image is to blame. If the worker dies, another one is put in its place
//! ([`replacement`](crate::restore::replacement)).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::fault;
use rekindle_protocol::worker::Phase;
use rekindle_store::Image;

use crate::caches::{CacheLease, Priority};
use crate::error::{Error, Result};
use crate::images::page_cache;
use crate::pool::Load;
use crate::restore::replacement::{self, RecoveryState};
use crate::restore::unwritten;
use crate::sandboxes::Sandbox;
use crate::sandboxes::traces;
use crate::timeline::{Clock, GPU};
use crate::workers::{Worker, WorkerError, gpu_half};

/// So often another worker is put in the place of one that died: what kills each that comes is not chance.
const MOST_REPLACEMENTS: u32 = 2;

/// A load that has failed is told of at once.
const CAUSE_LIMIT: Duration = Duration::from_secs(1);

/// A worker that loads.
pub struct PendingLoad {
    pub worker: Arc<Worker>,
    /// The path of the image, or of the half of it that the worker loads.
    pub image: PathBuf,
    /// When its restore began, on the restore's clock.
    pub began_us: u64,
    /// What it may read from caches until it has loaded all.
    pub lease: CacheLease,
    /// What another worker needs to go on in its place.
    pub recovery: RecoveryState,
}

/// Waits for the rest, each half of it on a thread of its own, then sees to what was put off for it: the trace's last phases,
/// the next worker of the pool and caches.
pub fn follow(sandbox: &Arc<Sandbox>, image: &Image, pending: Vec<PendingLoad>, load: Load, clock: Clock) {
    let load = Arc::new(load);
    for half in pending {
        follow_half(sandbox, image.manifest().name.clone(), half, load.clone(), clock);
    }
}

fn follow_half(sandbox: &Arc<Sandbox>, image: String, half: PendingLoad, load: Arc<Load>, clock: Clock) {
    let PendingLoad { worker, image: path, began_us, lease, recovery } = half;
    let sandbox = sandbox.clone();
    std::thread::spawn(move || {
        // Another worker needs it if this one dies meanwhile.
        let held = Image::open(&path);
        if let Err(error) = fault::point("load-awaited") {
            log::warn!("{error}");
        }
        sandbox.keep_mendable(&worker);
        let mut waited = wait(&worker).map(|phases| on_clock(phases, began_us));
        let mut worker = worker;
        for _ in 0..MOST_REPLACEMENTS {
            let Err(Error::Workers(WorkerError::Ended { how, .. })) = &waited else { break };
            if sandbox.has_lost_client(&worker) {
                break;
            }
            log::warn!("the worker of {:?} died while it loaded ({how}), and is replaced", sandbox.name());
            (worker, waited) = replacement::replace(&sandbox, &path, &worker, &recovery, &clock);
        }
        drop(held);
        sandbox.add_mapped(lease.mapped());
        let shares = lease.shares();
        drop(lease);
        let failed = waited.is_err();
        let passed_by = waited.as_ref().is_ok_and(|phases| page_cache::was_passed_by(phases));
        match waited {
            Ok(phases) => {
                traces::extend(&sandbox.traces, phases);
                sandbox.leave_alone(&worker);
            }
            // A program that ended takes its worker with it.
            Err(_) if sandbox.has_lost_client(&worker) => {}
            Err(error) => end(&sandbox, &image, &error),
        }
        if failed {
            // One that came in another's place may have no client yet, whose end would be its own.
            sandbox.end_worker(&worker);
        }
        // From now on the client sees it when its worker ends.
        drop(recovery);
        load.wait_for_first_work();
        drop(load);
        // That of a program which has come from another node goes.
        if sandbox.record().arrival.is_some() {
            return;
        }
        if passed_by {
            page_cache::fill(&path);
        }
        sandbox.fill_caches(&path, Priority::Restored);
        if sandbox.caches().shares() && unwritten::follow(&sandbox, &worker, &path, shares) {
            sandbox.fill_caches(&path, Priority::Restored);
        }
    });
}

/// Waits until a worker has loaded all.
pub fn wait(worker: &Worker) -> Result<Vec<Phase>> {
    gpu_half::loaded(worker, None)
}

/// Why a worker did not do what it was told in a restore: if a load has failed, it has let go of its client.
pub fn cause(worker: &Worker, error: Error) -> Error {
    match gpu_half::loaded(worker, Some(CAUSE_LIMIT)) {
        Err(cause @ Error::Workers(WorkerError::Failed { .. })) => cause,
        _ => error,
    }
}

/// Phases of a worker, which began then.
pub fn on_clock(phases: Vec<Phase>, began_us: u64) -> Vec<Phase> {
    let shift = |phase: Phase| Phase { lane: GPU.to_string(), start_us: phase.start_us + began_us, ..phase };
    phases.into_iter().map(shift).collect()
}

fn end(sandbox: &Sandbox, image: &str, error: &Error) {
    if sandbox.record().device {
        // Its program is the engine's, and sees its calls fail.
        return sandbox.report_problem(format!("image {image:?} could not be restored: {error}"));
    }
    let Ok(cpu) = sandbox.cpu("ended") else { return };
    sandbox
        .report_problem(format!("image {image:?} could not be restored, and the program was ended: {error}"));
    sandbox.note(|record| record.recovery.iter_mut().for_each(|recovery| recovery.suspects(image)));
    if let Err(error) = cpu.kill() {
        log::error!("a program whose GPU memory could not be loaded was not ended: {error}");
    }
}
