//! Programs that are brought back by themselves: images at intervals, and after a failure the last of them.
//!
//! ```text
//!  start ──every──▶ image 1 ──every──▶ image 2 ── failure
//!                                         └──restore──▶ goes on under the same name ──▶ image 3 …
//! ```
//!
//! What is needed for that is in the sandbox's record, so that the next daemon goes on with it. A failure is an end that
//! neither the program (exit code 0) nor the user wanted: a crash, a signal, the loss of its GPU worker, the end of the
//! machine. Of several images the newest that comes back is taken; without any the program starts from its beginning.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::{Run, State};

use crate::checkpoint::{self, CheckpointRequest};
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::events;
use crate::lifecycle::images;
use crate::lifecycle::run::{self, RunRequest};
use crate::reply::Reply;
use crate::restore::{self, load_order};
use crate::sandboxes::Sandbox;
use crate::sandboxes::record::Record;
use crate::sandboxes::recovery::{End, Next, Recovery, unix_ms};
use crate::sandboxes::steps::Steps;
use crate::tally;

/// How often it is looked how many steps a program has done.
const LOOK: Duration = Duration::from_millis(10);
/// How long the driver may wait for the GPU's work to end.
const GPU_WAIT: Duration = Duration::from_secs(10);

/// Sees to a sandbox that has a plan until that is over.
pub fn follow(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) {
    if !sandbox.record().goes_on() {
        return;
    }
    let (daemon, mut sandbox) = (daemon.clone(), sandbox.clone());
    std::thread::spawn(move || {
        loop {
            attend(&daemon, &sandbox);
            match bring_back(&daemon, &sandbox) {
                Some(next) => sandbox = next,
                None => return,
            }
        }
    });
}

/// Takes images until the program has ended.
fn attend(daemon: &Daemon, sandbox: &Arc<Sandbox>) {
    let record = sandbox.record();
    let Some(Recovery { plan, steps: done, .. }) = record.recovery else { return };
    let every = plan.every_ms.map(Duration::from_millis);
    let directory = Path::new(&record.directory);
    let mut steps = plan.steps.map(|plan| Steps::new(&plan, done, directory, &sandbox.root()));
    let mut due = every.map(|every| Instant::now() + every);
    loop {
        let rest = due.map(|due| due.saturating_duration_since(Instant::now()));
        let limit = if steps.is_some() { Some(rest.unwrap_or(LOOK).min(LOOK)) } else { rest };
        if sandbox.wait_end(limit).is_some() {
            return;
        }
        let are_due = steps.as_mut().and_then(|steps| steps.are_due(&sandbox.root()));
        if let Some(done) = are_due {
            sandbox.note(|record| record.recovery.iter_mut().for_each(|recovery| recovery.steps = done));
        }
        if are_due.is_none() && due.is_none_or(|due| Instant::now() < due) {
            continue;
        }
        match take(daemon, sandbox) {
            // One that has ended, or on which somebody else works just now.
            Ok(())
            | Err(Error::EndedMeanwhile { .. } | Error::NotRunning { .. } | Error::Occupied { .. }) => {}
            Err(error) => sandbox.report_problem(format!("the image that was due was not taken: {error}")),
        }
        due = every.map(|every| Instant::now() + every);
    }
}

fn take(daemon: &Daemon, sandbox: &Arc<Sandbox>) -> Result<()> {
    if sandbox.record().state == State::Asleep {
        // Nothing has changed.
        return Ok(());
    }
    let Some(recovery) = sandbox.record().recovery else { return Ok(()) };
    let name = |number: &u64| format!("{}.{number}", sandbox.name());
    let number = (recovery.number + 1..).find(|number| daemon.store.image(&name(number)).is_err());
    let number = number.unwrap_or(recovery.number + 1);
    let (to, begun) = (name(&number), unix_ms());
    let _making = daemon.making.take(&to)?;
    let request = CheckpointRequest {
        to: &to,
        leave_running: true,
        gpu_wait: GPU_WAIT,
        ..CheckpointRequest::default()
    };
    checkpoint::checkpoint(daemon, sandbox, &request, &Reply::to_nobody())?;
    events::tell_of_image("image-made", &to);
    let mut beyond = Vec::new();
    sandbox.update(|record| {
        if let Some(recovery) = &mut record.recovery {
            recovery.number = number;
            beyond = recovery.took(to.clone(), begun);
        }
    })?;
    if !beyond.is_empty()
        && let Err(error) = images::remove(daemon, &beyond)
    {
        log::warn!("images that are no longer kept: {error}");
    }
    Ok(())
}

/// How a sandbox ended.
fn end_of(record: &Record) -> End {
    match (record.state, record.exit_code) {
        (State::Stopped, _) | (State::Exited, Some(0)) => End::Wanted,
        (_, code) => End::Failed(code),
    }
}

/// The program that goes on in the place of one that has ended, if one does.
fn bring_back(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) -> Option<Arc<Sandbox>> {
    let end = end_of(&sandbox.record());
    let mut next = plan(sandbox, |recovery| recovery.after(end))?;
    loop {
        match next {
            Next::Nothing => {
                sandbox.stays_ended();
                return None;
            }
            Next::Up(reason) => {
                sandbox.stays_ended();
                sandbox.report_problem(reason);
                return None;
            }
            Next::Again(delay) => std::thread::sleep(delay),
        }
        // Somebody has removed it, or runs something else under its name.
        let is_there = daemon.sandboxes.get(&sandbox.name()).is_ok_and(|found| Arc::ptr_eq(&found, sandbox));
        let Some(recovery) = sandbox.record().recovery.filter(|recovery| is_there && !recovery.over) else {
            sandbox.stays_ended();
            return None;
        };
        match again(daemon, sandbox, &recovery) {
            Ok(next) => {
                tally::recoveries().done.inc();
                sandbox.set_successor(&next);
                if !sandbox.record().goes_on() || !next.record().goes_on() {
                    // The user has ended it while it was brought back, and nothing could be sent to it.
                    next.note(|record| record.recovery.iter_mut().for_each(|recovery| recovery.over = true));
                    next.end_program();
                }
                return Some(next);
            }
            Err(error) => {
                tally::recoveries().failed.inc();
                next = plan(sandbox, |recovery| recovery.stayed(&error.to_string()))?;
            }
        }
    }
}

/// Asks a sandbox's plan, which others may change at any time: a user who ends the program.
fn plan(sandbox: &Sandbox, ask: impl FnOnce(&mut Recovery) -> Next) -> Option<Next> {
    let mut next = None;
    sandbox.note(|record| next = record.recovery.as_mut().map(ask));
    next
}

/// Restores the newest image that comes back, or starts the program anew.
fn again(daemon: &Arc<Daemon>, sandbox: &Sandbox, recovery: &Recovery) -> Result<Arc<Sandbox>> {
    let mut failed = None;
    for taken in recovery.taken.iter().rev() {
        let mut recovery = recovery.clone();
        recovery.goes_on(Some(taken), unix_ms());
        match restored(daemon, sandbox, &taken.image, recovery) {
            Ok(next) => return Ok(next),
            Err(error) => {
                log::warn!(
                    "{:?} was not brought back from the image {:?}: {error}",
                    sandbox.name(),
                    taken.image
                );
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or_else(|| started(daemon, sandbox, recovery), Err)
}

fn restored(daemon: &Daemon, sandbox: &Sandbox, image: &str, recovery: Recovery) -> Result<Arc<Sandbox>> {
    let (name, record) = (sandbox.name(), sandbox.record());
    let request = restore::RestoreRequest {
        image,
        name: Some(&name),
        gpu: Some(&record.gpu),
        order: load_order::usual(),
        network: Some(record.network),
        publish: &record.ports,
        limits: record.limits,
        volumes: &record.mounts.volumes,
        tenant: record.tenant.as_deref(),
        recovery: Some(recovery),
        ..restore::RestoreRequest::default()
    };
    let reply = Reply::to_nobody();
    let opened = restore::open(daemon, &request, &reply)?;
    let report = restore::restore(daemon, opened, &request, &reply)?;
    daemon.sandboxes.get(&report.name)
}

fn started(daemon: &Arc<Daemon>, sandbox: &Sandbox, recovery: &Recovery) -> Result<Arc<Sandbox>> {
    let (record, mut recovery) = (sandbox.record(), recovery.clone());
    recovery.goes_on(None, unix_ms());
    let run = Run {
        name: Some(record.name),
        gpu: Some(record.gpu),
        mode: Some(record.mode),
        command: record.command,
        directory: record.directory,
        environment: recovery.environment.clone(),
        allow: recovery.allowed.clone(),
        network: Some(record.network),
        publish: record.ports,
        user: record.user,
        limits: record.limits,
        mounts: record.mounts,
        tenant: record.tenant,
        terminal: record.terminal,
        ..Run::default()
    };
    let request = RunRequest { run, framework: false, input: None, recovery: Some(recovery) };
    run::run(daemon, request)
}
