//! Processes that a signal keeps from running, and a guard beside us, a process of its own: should we die, it lets them
//! go on.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use nix::sys::socket::{Shutdown, shutdown};

use crate::error::{Error, Result};
use crate::process::{Handle, tree};
use crate::wire::Channel;

/// The argument with which a guard is run; its conversation is its standard input.
pub const GUARD_ARGUMENT: &str = "standing-guard";

/// A guard that has nothing to keep yet.
#[derive(Debug)]
pub struct Guard {
    channel: Channel,
    process: Child,
}

impl Guard {
    /// `program` is the daemon's, which becomes the guard.
    pub fn start(program: &Path) -> Result<Guard> {
        let failed = || Error::io("starting the guard of processes that stand still");
        let (ours, theirs) = Channel::pair().map_err(failed())?;
        let theirs = theirs.as_fd().try_clone_to_owned().map_err(failed())?;
        let mut command = Command::new(program);
        command.arg(GUARD_ARGUMENT).stdin(theirs).stdout(Stdio::null()).process_group(0);
        let process = command.spawn().map_err(failed())?;
        Ok(Guard { channel: ours, process })
    }

    /// Stops a process and all that descend from it.
    pub fn stop(self, root: i32) -> Result<Stopped> {
        let failed = || Error::io("having the guard look after processes that stand still");
        let pids = tree(root);
        let handles = pids.iter().filter_map(|pid| Handle::open(*pid).ok()).collect();
        self.channel.send(&pids, &[]).map_err(failed())?;
        self.channel
            .recv::<()>()
            .map_err(failed())?
            .ok_or(io::ErrorKind::UnexpectedEof.into())
            .map_err(failed())?;
        let stopped = Stopped { handles, _guard: self };
        for handle in &stopped.handles {
            // One that has ended needs none.
            let _ = handle.signal(libc::SIGSTOP);
        }
        Ok(stopped)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = shutdown(self.channel.socket().as_raw_fd(), Shutdown::Both);
        let _ = self.process.wait();
    }
}

/// Processes that stand still; those that are still there go on when this is dropped.
#[derive(Debug)]
pub struct Stopped {
    handles: Vec<Handle>,
    _guard: Guard,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        go_on(&self.handles);
    }
}

fn go_on(handles: &[Handle]) {
    for handle in handles {
        let _ = handle.signal(libc::SIGCONT);
    }
}

/// The guard itself.
pub fn guard_main() -> ExitCode {
    let kept = io::stdin().as_fd().try_clone_to_owned().and_then(keep);
    match kept {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{GUARD_ARGUMENT}: {error}; the daemon runs this");
            ExitCode::FAILURE
        }
    }
}

fn keep(conversation: OwnedFd) -> io::Result<()> {
    let channel = Channel::new(UnixStream::from(conversation));
    let Some((pids, _)) = channel.recv::<Vec<i32>>()? else { return Ok(()) };
    let handles: Vec<_> = pids.into_iter().filter_map(|pid| Handle::open(pid).ok()).collect();
    channel.send(&(), &[])?;
    // Nothing more is said: this ends when the other side does.
    let end = channel.recv::<()>();
    go_on(&handles);
    end.map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::stat::Stat;

    fn state(pid: i32) -> char {
        Stat::of(pid).unwrap().state().unwrap()
    }

    fn until(pid: i32, wanted: &str) {
        let began = Instant::now();
        while !wanted.contains(state(pid)) {
            assert!(began.elapsed() < Duration::from_secs(120), "{pid} is in state {}", state(pid));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn what_is_kept_goes_on_when_the_other_side_is_gone() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id() as i32;
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = theirs.as_fd().try_clone_to_owned().unwrap();
        let guard = std::thread::spawn(|| keep(theirs));
        ours.send(&vec![pid], &[]).unwrap();
        ours.recv::<()>().unwrap().unwrap();
        Handle::open(pid).unwrap().signal(libc::SIGSTOP).unwrap();
        until(pid, "T");
        drop(ours);
        guard.join().unwrap().unwrap();
        until(pid, "SR");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
