//! A command, or a copy of files, beside a sandbox's program; and somebody at its terminal.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rekindle_protocol::daemon::PassOn;
use rekindle_protocol::frame::FrameError;
use rekindle_sandbox::{EXEC_ARGUMENT, Ended, Guest, GuestTask};

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::lifecycle::LifecycleError;
use crate::reply::Reply;
use crate::sandboxes::{Sandbox, SandboxError};

/// Runs a command to its end; its code. It ends if the user goes.
pub fn exec(
    daemon: &Daemon,
    sandbox: &Sandbox,
    work: GuestTask,
    stdio: Vec<OwnedFd>,
    reply: &Reply<'_>,
) -> Result<i32> {
    let stdio: [OwnedFd; 3] = stdio.try_into().map_err(|_| Error::Descriptors { expected: 3 })?;
    match attend(daemon, sandbox, work, stdio, reply)? {
        Ended::Code(code) => Ok(code),
        Ended::Failed(why) => Err(LifecycleError::Exec { name: sandbox.name(), why }.into()),
    }
}

/// Copies an archive out to where the descriptor goes, or in from there.
pub fn copy(
    daemon: &Daemon,
    sandbox: &Sandbox,
    work: GuestTask,
    pipe: Vec<OwnedFd>,
    reply: &Reply<'_>,
) -> Result<()> {
    let [pipe]: [OwnedFd; 1] = pipe.try_into().map_err(|_| Error::Descriptors { expected: 1 })?;
    let null = || -> Result<OwnedFd> {
        let opened = File::options().read(true).write(true).open("/dev/null");
        opened.map(OwnedFd::from).map_err(|source| Error::system("open /dev/null", source))
    };
    let stdio = match work {
        GuestTask::Unpack(_) => [pipe, null()?, null()?],
        _ => [null()?, pipe, null()?],
    };
    match attend(daemon, sandbox, work, stdio, reply)? {
        Ended::Code(0) => Ok(()),
        Ended::Code(code) => {
            Err(LifecycleError::Copy { name: sandbox.name(), reason: format!("it ended with code {code}") }
                .into())
        }
        Ended::Failed(why) => Err(LifecycleError::Copy { name: sandbox.name(), reason: why.cause }.into()),
    }
}

/// How often a program that is brought back is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Has somebody use a program's terminal; with `again` also that of one which is being brought back after a failure.
/// Whether there is one: not if the program has ended for good.
pub fn attach(daemon: &Daemon, name: &str, user: OwnedFd, again: bool, reply: &Reply<'_>) -> Result<bool> {
    loop {
        let sandbox = daemon.sandboxes.get(name)?;
        let attached = sandbox.cpu("attached to").and_then(|cpu| Ok(cpu.attach(user.as_fd())?));
        match attached {
            Ok(()) => return Ok(true),
            Err(error) if !again => return Err(error),
            // It has ended, or is about to.
            Err(
                Error::Sandboxes(SandboxError::NotRunning { .. })
                | Error::Sandbox(rekindle_sandbox::Error::Ended { .. }),
            ) => {}
            Err(error) => return Err(error),
        }
        let has_ended = sandbox.wait_end(Some(LOOK_AGAIN)).is_some();
        if reply.is_gone() || (has_ended && !sandbox.record().goes_on()) {
            return Ok(false);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Begins a guest, and passes on to it what the user sends until it has ended.
fn attend(
    daemon: &Daemon,
    sandbox: &Sandbox,
    work: GuestTask,
    stdio: [OwnedFd; 3],
    reply: &Reply<'_>,
) -> Result<Ended> {
    let helper: [OsString; 2] = [daemon.program.clone().into_os_string(), EXEC_ARGUMENT.into()];
    let each = [stdio[0].as_fd(), stdio[1].as_fd(), stdio[2].as_fd()];
    let guest = sandbox.cpu("entered")?.exec(&helper, work, each)?;
    // A reader must see the end of what the guest writes.
    drop(stdio);
    let goes_on = wait(&guest, reply);
    if !goes_on {
        return Err(FrameError::Closed.into());
    }
    Ok(guest.wait()?)
}

/// Whether it has ended by itself, and not because the user has gone.
fn wait(guest: &Guest, reply: &Reply<'_>) -> bool {
    while let Some(ending) = guest.ending() {
        let watched = [Some(ending), reply.connection()].into_iter().flatten();
        let mut polled: Vec<_> = watched.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // One that was interrupted is made again.
        if poll(&mut polled, PollTimeout::NONE).is_err() {
            continue;
        }
        let is_ready = |at: usize| polled.get(at).and_then(PollFd::any).unwrap_or(false);
        if is_ready(0) {
            return true;
        }
        if is_ready(1) {
            match reply.hear::<PassOn>() {
                Ok(PassOn { signal }) => guest.signal(signal),
                Err(_) => return false,
            }
        }
    }
    true
}
