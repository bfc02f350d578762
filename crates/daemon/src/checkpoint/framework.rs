//! Making a framework image.

use std::time::{Duration, Instant};

use rekindle_protocol::daemon::{Framework, Report, Run};
use rekindle_sandbox::RUN_PATH;

use crate::checkpoint::{self, CheckpointRequest};
use crate::daemon::Daemon;
use crate::error::Result;
use crate::frameworks::{DIRECTORY, FrameworkError, is_ready, python};
use crate::lifecycle::run::{self, RunRequest};
use crate::reply::Reply;
use crate::sandboxes::Sandbox;

/// What a program of a sandbox is told: the directory in which it says that it is ready and waits.
const VARIABLE: &str = "REKINDLE_FRAMEWORK";
const EVERY: Duration = Duration::from_millis(5);
/// How long a program that is to end has for it.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Runs the program until it is ready, and takes it.
pub fn make(daemon: &Daemon, request: Framework, reply: &Reply<'_>) -> Result<Report> {
    // What is wrong with the name is told before the program runs.
    drop(daemon.store.begin(&request.image)?);
    let command = if request.command.is_empty() { python::command(&request.python) } else { request.command };
    let mut environment = request.environment;
    environment.retain(|(name, _)| name != VARIABLE);
    environment.push((VARIABLE.to_string(), format!("{RUN_PATH}/{DIRECTORY}")));
    reply.progress("get ready", 0, 0);
    let run = Run { gpu: request.gpu, command, directory: request.directory, environment, ..Run::default() };
    let sandbox = run::run(daemon, RunRequest { run, framework: true, ..RunRequest::default() })?;
    let taking = CheckpointRequest { to: &request.image, framework: true, ..CheckpointRequest::default() };
    let taken = wait_ready(&sandbox, Duration::from_millis(request.limit_ms), reply)
        .and_then(|()| checkpoint::checkpoint(daemon, &sandbox, &taking, reply));
    match taken {
        // Of one that worked nothing is left but the image.
        Ok(report) => {
            daemon.sandboxes.remove(&sandbox);
            Ok(report)
        }
        Err(error) => {
            end(&sandbox);
            Err(error)
        }
    }
}

fn wait_ready(sandbox: &Sandbox, limit: Duration, reply: &Reply<'_>) -> Result<()> {
    let began = Instant::now();
    let refused = |reason: String| FrameworkError::NotReady { name: sandbox.name(), reason }.into();
    while !is_ready(&sandbox.run_directory) {
        if let Some(record) = sandbox.wait_end(Some(EVERY)) {
            let code = record.exit_code.map(|code| format!(" with code {code}")).unwrap_or_default();
            return Err(refused(format!("it ended{code} before it was ready")));
        }
        if began.elapsed() > limit {
            return Err(refused(format!("it was not ready within {} s", limit.as_secs_f64())));
        }
        if reply.is_gone() {
            return Err(refused("nobody waits for it any more".to_string()));
        }
    }
    Ok(())
}

fn end(sandbox: &Sandbox) {
    if let Ok(cpu) = sandbox.cpu("ended") {
        if let Err(error) = cpu.kill() {
            log::error!("a framework's program was not ended: {error}");
        }
        sandbox.wait_end(Some(END_LIMIT));
    }
}
