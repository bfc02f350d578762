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
use rekindle_store::Error as StoreError;

use crate::checkpoint::{self, CheckpointRequest};
use crate::claims::ClaimError;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::events;
use crate::lifecycle::images;
use crate::lifecycle::run::{self, RunRequest};
use crate::reply::Reply;
use crate::restore::{self, load_order};
use crate::sandboxes::record::Record;
use crate::sandboxes::recovery::{End, Next, Recovery, unix_ms};
use crate::sandboxes::steps::Steps;
use crate::sandboxes::{Sandbox, SandboxError};
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
    settle(daemon, sandbox);
    let record = sandbox.record();
    let Some(recovery) = record.recovery else { return };
    let mut is_new_here = recovery.lacks_image();
    let Recovery { plan, steps: done, .. } = recovery;
    let every = plan.every_ms.map(Duration::from_millis);
    let directory = Path::new(&record.directory);
    let mut steps = plan.steps.map(|plan| Steps::new(&plan, done, directory, &sandbox.root()));
    let mut due = every.map(|every| Instant::now() + every);
    loop {
        // A failure would take it back to its beginning, so it has an image at once.
        if std::mem::take(&mut is_new_here) && (every.is_some() || steps.is_some()) {
            take_or_tell(daemon, sandbox);
        }
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
        // From one beginning to the next; where an image takes longer, the next one follows at once.
        due = every.map(|every| Instant::now() + every);
        take_or_tell(daemon, sandbox);
    }
}

fn take_or_tell(daemon: &Daemon, sandbox: &Arc<Sandbox>) {
    match take(daemon, sandbox) {
        // One that has ended, or on which somebody else works just now.
        Ok(())
        | Err(
            Error::Sandboxes(SandboxError::EndedMeanwhile { .. } | SandboxError::NotRunning { .. })
            | Error::Claims(ClaimError::Sandbox { .. }),
        ) => {}
        Err(error) => sandbox.report_problem(format!("the image that was due was not taken: {error}")),
    }
    settle(daemon, sandbox);
}

fn take(daemon: &Daemon, sandbox: &Arc<Sandbox>) -> Result<()> {
    if sandbox.record().state == State::Asleep {
        // Nothing has changed.
        return Ok(());
    }
    let Some(recovery) = sandbox.record().recovery else { return Ok(()) };
    let name = |number: u64| image_name(sandbox, number);
    let number = (recovery.number + 1..).find(|number| daemon.store.image(&name(*number)).is_err());
    let to = name(number.unwrap_or(recovery.number + 1));
    let _making = daemon.making.take(&to)?;
    change(sandbox, |recovery| recovery.takes(to.clone(), unix_ms()))?;
    let request = CheckpointRequest {
        to: &to,
        leave_running: true,
        gpu_wait: GPU_WAIT,
        ..CheckpointRequest::default()
    };
    checkpoint::checkpoint(daemon, sandbox, &request, &Reply::to_nobody()).inspect_err(|_| {
        // One of that name may have been made by somebody else meanwhile.
        let _ = change(sandbox, |recovery| recovery.took(recovery.number, false));
    })?;
    events::tell_of_image("image-made", &to);
    Ok(())
}

fn image_name(sandbox: &Sandbox, number: u64) -> String {
    format!("{}.{number}", sandbox.name())
}

/// Notes whether the last image was made, which an earlier daemon may have begun, and removes those beyond the number to be
/// kept.
fn settle(daemon: &Daemon, sandbox: &Sandbox) {
    let Some(recovery) = sandbox.record().recovery else { return };
    let mut is_noted = Ok(());
    if let Some(image) = recovery.taking() {
        let number = image.rsplit('.').next().and_then(|number| number.parse().ok());
        let is_made = daemon.store.image(image).is_ok();
        is_noted = change(sandbox, |recovery| recovery.took(number.unwrap_or(recovery.number), is_made));
    }
    let beyond = sandbox.record().recovery.map(|recovery| recovery.beyond).unwrap_or_default();
    if beyond.is_empty() {
        return is_noted.unwrap_or_else(|error| log::warn!("{error}"));
    }
    if let Err(error) = images::remove(daemon, &beyond) {
        log::warn!("images that are no longer kept: {error}");
    }
    let is_gone = |image: &String| matches!(daemon.store.image(image), Err(StoreError::NoImage { .. }));
    if let Err(error) = change(sandbox, |recovery| recovery.beyond.retain(|image| !is_gone(image))) {
        log::warn!("{error}");
    }
}

fn change(sandbox: &Sandbox, change: impl FnOnce(&mut Recovery)) -> Result<()> {
    sandbox.update(|record| record.recovery.as_mut().map_or((), change))
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
    for taken in &recovery.candidates() {
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
