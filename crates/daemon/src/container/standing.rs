//! A container that is to go on stands still until its writable layer is archived too: Podman does that after its memory,
//! while the program would run on.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rekindle_sandbox::process::{Handle, tree};
use rekindle_sandbox::{Course, Relay};

use super::engine::{Container, Engine, Exported};
use super::podman::Podman;
use crate::checkpoint::Scratch;
use crate::daemon::Daemon;
use crate::error::Result;

/// Exports a container of Podman's that goes on when what is given beside is dropped.
pub fn export(
    daemon: &Daemon,
    scratch: &Scratch,
    container: &Container,
    archive: &Path,
) -> Result<(Exported, Stopped)> {
    let relay = relay(daemon, container.id.get(..16).unwrap_or(&container.id), scratch)?;
    let podman = Podman::through(daemon.criu()?, relay.directory());
    let stopped = Mutex::new(Stopped::default());
    let at_step = |_| {
        *stopped.lock().unwrap_or_else(PoisonError::into_inner) = Stopped::all(container.pid);
        Ok(())
    };
    let export = || podman.export(container, archive, true);
    let exported = relay.conduct(Course::Dump { sockets: &[] }, at_step, export)?;
    Ok((exported, stopped.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

/// The relay of one checkpoint or restore. Its socket's path must be short.
pub fn relay(daemon: &Daemon, id: &str, scratch: &Scratch) -> Result<Relay> {
    let socket = daemon.places.runs.join(format!("criu-{id}.sock"));
    Ok(Relay::make(&scratch.path.join("criu"), &socket, &daemon.program, daemon.criu()?)?)
}

/// Processes that a signal keeps from running; they go on when this is dropped.
#[derive(Default)]
pub struct Stopped(Vec<Handle>);

impl Stopped {
    pub fn all(root: i32) -> Stopped {
        let handles = tree(root).into_iter().filter_map(|pid| Handle::open(pid).ok());
        // One that has ended needs none.
        Stopped(handles.filter(|handle| handle.signal(libc::SIGSTOP).is_ok()).collect())
    }

    pub fn forget(mut self) {
        self.0.clear();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for handle in &self.0 {
            let _ = handle.signal(libc::SIGCONT);
        }
    }
}
