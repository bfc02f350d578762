//! How one worker hands a program over to another: its memory, and its client.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use rekindle_protocol::worker::{Status, ask};

use super::{LOOK, SETTLE_LIMIT};
use crate::error::{Error, Result};
use crate::fault;
use crate::sandboxes::Sandbox;
use crate::workers::{Worker, gpu_half};

/// Lets a worker have the memory of another one's program, to map, or to copy from.
pub(super) fn lend(source: &Worker, target: &Worker, copy: bool) -> Result<()> {
    let mut from = 0;
    loop {
        let (names, descriptors) = source.hand_over(from)?;
        if names.is_empty() {
            return Ok(());
        }
        from += names.len();
        let memory: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        target.ask("take memory of another worker's", ask::Memory { names, copy }, &memory)?;
    }
}

/// Gives the client to the other worker, which is not to let it go on yet.
pub(super) fn give(source: &Worker, target: &Worker, pid: i32) -> Result<()> {
    let (reads, writes) = pipe()?;
    let (client, parted) = gpu_half::part(source, reads.as_fd())?;
    drop(reads);
    fault::point("migrate-parted")?;
    gpu_half::take_over(target, pid, parted, client.as_fd(), writes.as_fd())?;
    fault::point("migrate-handed-over")
}

/// Whether the program goes on there, or has done so: what it was told to go on by is not known of.
pub(super) fn is_there(sandbox: &Sandbox, source: &Worker, target: &Worker) -> bool {
    let began = Instant::now();
    let state = |worker: &Worker| -> Option<Status> { worker.status().ok() };
    loop {
        match state(source) {
            Some(status) if !status.parted => return false,
            Some(_) if began.elapsed() > SETTLE_LIMIT || target.ended().is_some() => return false,
            Some(_) => std::thread::sleep(LOOK),
            None => return !sandbox.is_ending(),
        }
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    pipe2(OFlag::O_CLOEXEC).map_err(|errno| Error::system("make a pipe", std::io::Error::from(errno)))
}
