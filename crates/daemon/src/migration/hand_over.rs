//! How one worker hands a program over to another: its memory, and its client.

use std::fs::File;
use std::io::Write;
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

/// Lets a worker have the memory of another one's program: to map, or to copy from, but for that of the devices which stay.
pub(super) fn lend(source: &Worker, target: &Worker, copies: Option<&[usize]>) -> Result<()> {
    let (copy, stays) = (copies.is_some(), copies.unwrap_or_default());
    let mut from = 0;
    loop {
        let (names, descriptors) = source.hand_over(from)?;
        if names.is_empty() {
            return Ok(());
        }
        from += names.len();
        let memory: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        target.ask(
            "take memory of another worker's",
            ask::Memory { names, copy, stays: stays.to_vec() },
            &memory,
        )?;
    }
}

/// By what the halves of a program with several are told that all of them go on with the other workers.
pub(super) struct Together {
    reads: OwnedFd,
    writes: File,
}

impl Together {
    pub(super) fn new() -> Result<Together> {
        let (reads, writes) = pipe()?;
        Ok(Together { reads, writes: writes.into() })
    }

    /// Tells so many halves, here and there, by one write, of which either all comes or nothing. From now on they go on there.
    pub(super) fn say(mut self, halves: usize) -> Result<()> {
        let said = self.writes.write(&vec![1; 2 * halves]);
        said.map(drop).map_err(|source| Error::system("write to a pipe", source))
    }
}

/// Gives the client to the other worker, which is not to let it go on yet; nor is it to without the others, if there are some.
pub(super) fn give(source: &Worker, target: &Worker, together: Option<&Together>) -> Result<()> {
    let (reads, writes) = pipe()?;
    let all = together.map(|together| together.reads.as_fd());
    let words: Vec<_> = std::iter::once(reads.as_fd()).chain(all).collect();
    let (client, parted) = gpu_half::part(source, &words)?;
    drop(reads);
    fault::point("migrate-parted")?;
    let descriptors: Vec<_> = [client.as_fd(), writes.as_fd()].into_iter().chain(all).collect();
    gpu_half::take_over(target, source.client(), parted, &descriptors)?;
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
