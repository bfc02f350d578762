//! A worker in place of one that was lost, whose program does not see it.
//!
//! ```text
//!   worker ── requests, in a journal behind a base ✕
//!      ledger, journals, bases, client's socket: held by the daemon too
//!   another                  TakeUp: the state ─ the base put back ─ the journal done once more ──▶
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::State;
use rekindle_protocol::mending::{MendMode, MendObstacle};

use crate::error::{Error, Result};
use crate::events;
use crate::host::process::is_alive;
use crate::restore::RestoreError;
use crate::sandboxes::Sandbox;
use crate::timeline::Clock;
use crate::workers::{TakeoverState, Worker, WorkerError};

const WANTED: &str = "given another GPU worker";
/// So many workers are tried: what kills each that comes is not chance.
const ATTEMPTS: u32 = 3;
/// So often within such a time.
const MOST: usize = 5;
const WITHIN: Duration = Duration::from_secs(60);

/// Puts another worker in the place of a lost one, or tells why not.
pub fn replace(sandbox: Arc<Sandbox>, lost: Arc<Worker>) {
    let began = Instant::now();
    let how = lost.ended().unwrap_or_default();
    let has_gone = lost.held().is_none_or(|held| held.has_lost_client());
    if has_gone || sandbox.has_lost_client(&lost) {
        return lost.let_go_of_held();
    }
    match go_on(&sandbox, &lost, began) {
        Ok(()) => {
            let lost_ms = began.elapsed().as_millis() as u64;
            log::info!(
                "the worker of {:?} was lost ({how}), and another one is in its place after {lost_ms} ms",
                sandbox.name()
            );
            events::tell("mended", |happened| happened.sandbox = Some(sandbox.name()));
        }
        Err(_) if sandbox.has_lost_client(&lost) => lost.let_go_of_held(),
        Err(error) => {
            sandbox.report_problem(format!(
                "its GPU worker died ({how}), and another one could not take its place: {error}; its GPU memory is lost"
            ));
            // Its client sees the end now.
            lost.let_go_of_held();
            sandbox.end_if_brought_back();
        }
    }
}

fn go_on(sandbox: &Arc<Sandbox>, lost: &Arc<Worker>, began: Instant) -> Result<()> {
    let (Some(held), Some(how)) = (lost.held(), sandbox.record().limits.mend) else {
        return Err(unmended("nothing of it is held any more".to_string()));
    };
    let operation = sandbox.begin_after(State::Waking, WANTED)?;
    if let Some(standing) = held.standing().filter(|standing| standing.epoch.is_none()) {
        return Err(unmended(standing.why.unwrap_or(MendObstacle::Beginning).why().to_string()));
    }
    if !sandbox.may_mend(MOST, WITHIN) {
        let within = WITHIN.as_secs();
        return Err(unmended(format!("it has lost {MOST} workers within {within} s, which is not chance")));
    }
    let load = sandbox.pool.begin_load();
    let mut attempt = 1;
    let worker = loop {
        match take_up(sandbox, lost, &held, how) {
            Ok(worker) => break worker,
            Err((error, true)) if attempt < ATTEMPTS && is_alive(lost.client()) => {
                log::warn!("{:?}: another worker is tried: {error}", sandbox.name());
                attempt += 1;
            }
            Err((error, _)) => return Err(operation.explain(error)),
        }
    };
    worker.set_client(lost.client());
    sandbox.end_worker(lost);
    lost.let_go_of_held();
    sandbox.note_workers();
    sandbox.note(|record| {
        record.mended.times += 1;
        record.mended.lost_ms += began.elapsed().as_millis() as u64;
    });
    drop(operation);
    sandbox.leave_alone(&worker);
    load.end_later();
    Ok(())
}

/// A worker that has taken the place; or why not, and whether it was lost too.
fn take_up(
    sandbox: &Arc<Sandbox>,
    lost: &Worker,
    held: &TakeoverState,
    how: MendMode,
) -> std::result::Result<Arc<Worker>, (Error, bool)> {
    let clock = Clock::at(0);
    let worker = sandbox.take_worker_at(lost.slice()).map_err(|error| (error, false))?;
    worker.set_followed(true);
    let place = sandbox.mending_place(&worker);
    let taken = worker
        .first_status()
        .and_then(|_| worker.tell_owner())
        .and_then(|()| held.take_up(&worker, &sandbox.run_directory, lost.client(), how, place));
    match taken {
        Ok(phases) => {
            let words: Vec<String> =
                phases.iter().map(|phase| format!("{} {} us", phase.name, phase.duration_us)).collect();
            log::info!("{:?}: {} us: {}", sandbox.name(), clock.elapsed_us(), words.join(", "));
            Ok(worker)
        }
        Err(error) => {
            let is_lost = matches!(error, Error::Workers(WorkerError::Ended { .. }));
            sandbox.end_worker(&worker);
            worker.kill();
            Err((error, is_lost))
        }
    }
}

fn unmended(reason: String) -> Error {
    RestoreError::Unmended { reason }.into()
}
