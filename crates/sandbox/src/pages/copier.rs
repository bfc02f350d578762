//! Copying the memory of programs that stand still into files, by many threads. Zero pages are left out.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::area::PAGE;
use super::contents::filled;
use super::server::Source;

/// Small enough to stay in a core's cache between reading and writing; a large page of a file in memory, which the
/// kernel need not clear if it is written whole.
const PIECE: u64 = 2 << 20;

/// A hole costs a system call: as much time as copying so much.
const LEAST_HOLE: u64 = 64 << 10;

/// Memory that is to go to a place in a file.
pub struct Job {
    pub source: Arc<Source>,
    pub memory: Range<u64>,
    pub file: Arc<File>,
    pub offset: u64,
}

/// What is to be copied, and what went wrong.
#[derive(Default)]
pub struct Jobs {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    closed: bool,
    failure: Option<(io::ErrorKind, String)>,
}

impl Jobs {
    pub fn add(&self, job: Job) {
        self.state().waiting.push_back(job);
        self.more.notify_all();
    }

    /// No more jobs come; those that wait are dropped if the dump has failed.
    pub fn close(&self, failed: bool) {
        let mut state = self.state();
        state.closed = true;
        if failed {
            state.waiting.clear();
        }
        self.more.notify_all();
    }

    /// What went wrong first.
    pub fn failure(&self) -> io::Result<()> {
        match &self.state().failure {
            None => Ok(()),
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
        }
    }

    /// Copies until no more jobs come.
    pub fn work(&self) {
        let mut block = vec![0; PIECE as usize];
        while let Some(job) = self.next() {
            if let Err(error) = job.copy(&mut block) {
                let mut state = self.state();
                state.waiting.clear();
                state.failure.get_or_insert((error.kind(), error.to_string()));
            }
        }
    }

    /// The next piece.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.waiting.front_mut() {
                let end = job.memory.end.min(job.memory.start + PIECE - job.offset % PIECE);
                let piece = Job {
                    source: job.source.clone(),
                    memory: job.memory.start..end,
                    file: job.file.clone(),
                    offset: job.offset,
                };
                job.offset += end - job.memory.start;
                job.memory.start = end;
                if job.memory.is_empty() {
                    state.waiting.pop_front();
                }
                return Some(piece);
            }
            if state.closed {
                return None;
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn copy(&self, block: &mut [u8]) -> io::Result<()> {
        let block = &mut block[..(self.memory.end - self.memory.start) as usize];
        let got = read(self.source.host_pid, self.memory.start, block);
        if got < block.len() {
            // What the process itself may not read.
            let got = got / PAGE as usize * PAGE as usize;
            self.source.memory.read_exact_at(&mut block[got..], self.memory.start + got as u64)?;
        }
        filled(block, LEAST_HOLE, |at, bytes| self.file.write_all_at(bytes, self.offset + at as u64))
    }
}

/// Reads as much as that process could read itself.
fn read(pid: i32, address: u64, into: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: writes at most `into.len()` bytes to `into`; the other address is the other process's.
    let got = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(got).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_copied_without_its_zero_pages_and_without_leave_to_read() {
        let bytes = 3 * PIECE as usize;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: within the mapping above, which nothing else uses.
        let memory = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), bytes) };
        memory[5 * PAGE as usize] = 7;
        memory[7 * PAGE as usize] = 7;
        memory[2 * PIECE as usize..][..9].fill(8);
        let expected = memory.to_vec();
        // SAFETY: makes a part of that mapping unreadable.
        unsafe { libc::mprotect(at.add(2 * PIECE as usize), PIECE as usize, libc::PROT_NONE) };
        let file = Arc::new(tempfile::tempfile().unwrap());
        let memory = File::open("/proc/self/mem").unwrap();
        let source = Arc::new(Source { host_pid: std::process::id() as i32, memory });
        let jobs = Jobs::default();
        let start = at as u64;
        jobs.add(Job { source, memory: start..start + bytes as u64, file: file.clone(), offset: PAGE });
        jobs.close(false);
        std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(|| jobs.work()))));
        jobs.failure().unwrap();
        let mut found = vec![0; bytes];
        let length = file.metadata().unwrap().len();
        file.read_exact_at(&mut found[..(length - PAGE) as usize], PAGE).unwrap();
        assert!(found == expected);
        use std::os::unix::fs::MetadataExt;
        assert!(file.metadata().unwrap().blocks() * 512 <= 8 * PAGE, "three pages are not zero");
        // SAFETY: unmaps what was mapped above; the slice is not used any more.
        unsafe { libc::munmap(at, bytes) };
    }

    #[test]
    fn what_is_not_there_is_told() {
        let memory = File::open("/proc/self/mem").unwrap();
        let source = Arc::new(Source { host_pid: std::process::id() as i32, memory });
        let jobs = Jobs::default();
        let file = Arc::new(tempfile::tempfile().unwrap());
        jobs.add(Job { source, memory: PAGE..2 * PAGE, file, offset: 0 });
        jobs.close(false);
        jobs.work();
        assert!(jobs.failure().is_err());
    }
}
