//! Copying memory of programs that stand still, and of files, into files, by many threads. Zero pages are left out.
//!
//! Jobs that follow each other in a file are done together, up to the next boundary of a piece: memory comes in many small
//! stretches, and the kernel lets one thread at a time write to a file, so that threads which each had a small stretch
//! would only wait for each other.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::area::PAGE;
use super::contents::{filled, read_zero_filled};

/// Small enough to stay in a core's cache between reading and writing; a large page of a file in memory, which the
/// kernel need not clear if it is written whole.
const PIECE: u64 = 2 << 20;

/// A hole costs a system call: as much time as copying so much.
const LEAST_HOLE: u64 = 64 << 10;

/// More than these share a machine's memory to no end.
const MOST_THREADS: usize = 16;

/// Names the contents of a piece.
pub type Digest = fn(&[u8]) -> [u8; 32];

/// Two megabytes of a file, written whole and not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its place in the file.
    pub at: u64,
    pub digest: [u8; 32],
    /// Bytes of its pages that are not all zero.
    pub filled: u64,
}

/// Of files, what is known of their pieces.
#[derive(Default)]
pub struct Pieces(Vec<(Arc<File>, Vec<Piece>)>);

impl Pieces {
    pub fn of(&self, file: &Arc<File>) -> Vec<Piece> {
        let found = self.0.iter().find(|(known, _)| Arc::ptr_eq(known, file));
        found.map(|(_, pieces)| pieces.clone()).unwrap_or_default()
    }
}

/// How many threads copy.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get()).min(MOST_THREADS)
}

/// A process that pages are read of.
pub struct Source {
    pub host_pid: i32,
    /// For what the process itself may not read.
    pub memory: File,
}

/// Where bytes are read.
#[derive(Clone)]
pub enum From {
    /// From that address on.
    Process(Arc<Source>, u64),
    /// From that place on; what is beyond its end is zero.
    File(Arc<File>, u64),
}

impl From {
    fn after(&self, bytes: u64) -> From {
        match self {
            From::Process(source, address) => From::Process(source.clone(), address + bytes),
            From::File(file, at) => From::File(file.clone(), at + bytes),
        }
    }

    fn read(&self, block: &mut [u8]) -> io::Result<()> {
        match self {
            From::Process(source, address) => {
                let got = read(source.host_pid, *address, block);
                if got < block.len() {
                    // What the process itself may not read.
                    let got = got / PAGE as usize * PAGE as usize;
                    source.memory.read_exact_at(&mut block[got..], address + got as u64)?;
                }
                Ok(())
            }
            From::File(file, at) => read_zero_filled(file, block, *at),
        }
    }

    /// Calls `take` with the parts of `memory`, which begins here, that are not all zero, as they come.
    pub fn each_filled(
        &self,
        memory: &Range<u64>,
        mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let length = memory.end - memory.start;
        let mut block = vec![0; PIECE.min(length) as usize];
        let mut done = 0;
        while done < length {
            let block = &mut block[..PIECE.min(length - done) as usize];
            self.after(done).read(block)?;
            filled(block, PAGE, |at, bytes| take(memory.start + done + at as u64, bytes))?;
            done += block.len() as u64;
        }
        Ok(())
    }
}

/// So many bytes that are to go to a place in a file.
pub struct Job {
    pub from: From,
    pub bytes: u64,
    pub file: Arc<File>,
    pub offset: u64,
}

/// Jobs that follow each other in a file, or parts of such, within one piece.
struct Batch {
    file: Arc<File>,
    offset: u64,
    bytes: u64,
    parts: Vec<(From, u64)>,
}

/// What is to be copied, and what went wrong.
#[derive(Default)]
pub struct Jobs {
    state: Mutex<State>,
    more: Condvar,
    digest: Option<Digest>,
}

#[derive(Default)]
struct State {
    queues: Vec<Queue>,
    closed: bool,
    failure: Option<(io::ErrorKind, String)>,
}

/// What goes to one file: the kernel lets one thread at a time write to it, so others are looked to first.
struct Queue {
    file: Arc<File>,
    waiting: VecDeque<Job>,
    busy: usize,
    pieces: Vec<Piece>,
}

impl Jobs {
    /// Runs `feed`, which adds jobs, and returns once all are done. If it fails, those that still wait are dropped. With
    /// `first`, one thread copies until that is set, and all that there are from then on.
    pub fn with_workers<T, E>(
        first: Option<&OnceLock<()>>,
        feed: impl FnOnce(&Jobs) -> Result<T, E>,
    ) -> (Result<T, E>, io::Result<()>) {
        let (fed, copied) = Jobs::with_digests(first, None, feed);
        (fed, copied.map(|_| ()))
    }

    /// As [`Jobs::with_workers`], with digests of what was copied: each piece is looked at while it is at hand.
    pub fn with_digests<T, E>(
        first: Option<&OnceLock<()>>,
        digest: Option<Digest>,
        feed: impl FnOnce(&Jobs) -> Result<T, E>,
    ) -> (Result<T, E>, io::Result<Pieces>) {
        let jobs = Jobs { digest, ..Jobs::default() };
        let fed = std::thread::scope(|scope| {
            for number in 0..threads() {
                let jobs = &jobs;
                scope.spawn(move || {
                    if let (Some(first), 1..) = (first, number) {
                        first.wait();
                    }
                    jobs.work();
                });
            }
            let fed = feed(&jobs);
            jobs.close(fed.is_err());
            fed
        });
        let copied = jobs.failure().map(|()| {
            let queues = std::mem::take(&mut jobs.state().queues);
            Pieces(queues.into_iter().map(|queue| (queue.file, queue.pieces)).collect())
        });
        (fed, copied)
    }

    pub fn add(&self, job: Job) {
        let mut state = self.state();
        if state.failure.is_some() {
            return;
        }
        let known = state.queues.iter().position(|queue| Arc::ptr_eq(&queue.file, &job.file));
        let at = known.unwrap_or_else(|| {
            let file = job.file.clone();
            state.queues.push(Queue { file, waiting: VecDeque::new(), busy: 0, pieces: Vec::new() });
            state.queues.len() - 1
        });
        state.queues[at].waiting.push_back(job);
        if state.queues[at].is_ready(false) {
            self.more.notify_one();
        }
    }

    /// No more jobs come.
    fn close(&self, failed: bool) {
        let mut state = self.state();
        state.closed = true;
        if failed {
            state.drop_waiting();
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
    fn work(&self) {
        let mut block = vec![0; PIECE as usize];
        while let Some((queue, batch)) = self.next() {
            let done = batch.copy(&mut block, self.digest);
            let mut state = self.state();
            state.queues[queue].busy -= 1;
            match done {
                Ok(known) => state.queues[queue].pieces.extend(known),
                Err(error) => {
                    state.drop_waiting();
                    state.failure.get_or_insert((error.kind(), error.to_string()));
                }
            }
        }
    }

    /// What is to be done next, with the number of its queue.
    fn next(&self) -> Option<(usize, Batch)> {
        let mut state = self.state();
        loop {
            if let Some(found) = state.take() {
                // Each thread that finds work wakes the next one.
                if state.ready().next().is_some() {
                    self.more.notify_one();
                }
                return Some(found);
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

impl State {
    /// The queues with work for one more thread.
    fn ready(&mut self) -> impl Iterator<Item = (usize, &mut Queue)> {
        let closed = self.closed;
        self.queues.iter_mut().enumerate().filter(move |(_, queue)| queue.is_ready(closed))
    }

    fn take(&mut self) -> Option<(usize, Batch)> {
        let (number, queue) = self.ready().min_by_key(|(_, queue)| queue.busy)?;
        let batch = queue.batch()?;
        queue.busy += 1;
        Some((number, batch))
    }

    fn drop_waiting(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.waiting.clear());
    }
}

impl Queue {
    /// What does not fill a piece waits until more has come.
    fn is_ready(&self, closed: bool) -> bool {
        let (Some(front), Some(back)) = (self.waiting.front(), self.waiting.back()) else { return false };
        let boundary = front.offset + room(front.offset);
        let reach = (front.offset + front.bytes).max(back.offset + back.bytes);
        closed || reach >= boundary
    }

    fn batch(&mut self) -> Option<Batch> {
        let offset = self.waiting.front()?.offset;
        let mut batch = Batch { file: self.file.clone(), offset, bytes: 0, parts: Vec::new() };
        while let Some(job) = self.waiting.front_mut() {
            let left = room(offset) - batch.bytes;
            if left == 0 || job.offset != offset + batch.bytes {
                break;
            }
            let bytes = job.bytes.min(left);
            batch.parts.push((job.from.clone(), bytes));
            batch.bytes += bytes;
            (job.from, job.offset, job.bytes) =
                (job.from.after(bytes), job.offset + bytes, job.bytes - bytes);
            if job.bytes == 0 {
                self.waiting.pop_front();
            }
        }
        Some(batch)
    }
}

/// Up to the next boundary of a piece.
fn room(offset: u64) -> u64 {
    PIECE - offset % PIECE
}

impl Batch {
    /// Tells of what is a piece and not all zero.
    fn copy(&self, block: &mut [u8], digest: Option<Digest>) -> io::Result<Option<Piece>> {
        let block = &mut block[..self.bytes as usize];
        let mut rest = &mut *block;
        for (from, bytes) in &self.parts {
            let (part, after) = rest.split_at_mut(*bytes as usize);
            from.read(part)?;
            rest = after;
        }
        let least = match self.parts.iter().any(|(from, _)| matches!(from, From::Process(..))) {
            true => LEAST_HOLE,
            false => PAGE,
        };
        let mut is_zero = true;
        filled(block, least, |at, bytes| {
            is_zero = false;
            self.file.write_all_at(bytes, self.offset + at as u64)
        })?;
        let Some(digest) = digest.filter(|_| self.bytes == PIECE && !is_zero) else { return Ok(None) };
        let mut bytes_filled = 0;
        filled(block, PAGE, |_, bytes| {
            bytes_filled += bytes.len() as u64;
            Ok::<(), io::Error>(())
        })?;
        Ok(Some(Piece { at: self.offset, digest: digest(block), filled: bytes_filled }))
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
        let (done, copied) = Jobs::with_workers(None, |jobs| {
            let from = From::Process(source, at as u64);
            jobs.add(Job { from, bytes: bytes as u64, file: file.clone(), offset: PAGE });
            Ok::<(), ()>(())
        });
        done.unwrap();
        copied.unwrap();
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
    fn whole_pieces_have_digests() {
        let contents: Vec<u8> = (0..3 * PIECE).map(|at| if at < 2 * PIECE { at as u8 } else { 0 }).collect();
        let from = Arc::new(tempfile::tempfile().unwrap());
        from.write_all_at(&contents, 0).unwrap();
        let (file, other) =
            (Arc::new(tempfile::tempfile().unwrap()), Arc::new(tempfile::tempfile().unwrap()));
        let digest: Digest = |bytes| [bytes[1], 2, 3, 4].repeat(8).try_into().unwrap();
        let (_, copied) = Jobs::with_digests(None, Some(digest), |jobs| {
            jobs.add(Job {
                from: From::File(from.clone(), 0),
                bytes: 3 * PIECE,
                file: file.clone(),
                offset: PIECE,
            });
            jobs.add(Job {
                from: From::File(from.clone(), 0),
                bytes: 2 * PIECE,
                file: other.clone(),
                offset: PAGE,
            });
            Ok::<(), ()>(())
        });
        let pieces = copied.unwrap();
        let places = |file: &Arc<File>| {
            let mut places: Vec<_> =
                pieces.of(file).into_iter().map(|piece| (piece.at, piece.digest[0], piece.filled)).collect();
            places.sort_unstable();
            places
        };
        assert_eq!(places(&file), [(PIECE, 1, PIECE), (2 * PIECE, 1, PIECE)], "the third is zero");
        assert_eq!(
            places(&other),
            [(PIECE, (PIECE - PAGE + 1) as u8, PIECE)],
            "the others are parts of pieces"
        );
    }

    #[test]
    fn what_is_not_there_is_told() {
        let memory = File::open("/proc/self/mem").unwrap();
        let source = Arc::new(Source { host_pid: std::process::id() as i32, memory });
        let file = Arc::new(tempfile::tempfile().unwrap());
        let (_, copied) = Jobs::with_workers(None, |jobs| {
            jobs.add(Job { from: From::Process(source, PAGE), bytes: PAGE, file, offset: 0 });
            Ok::<(), ()>(())
        });
        assert!(copied.is_err());
    }

    #[test]
    fn files_are_copied_to_many_others_whatever_the_order() {
        let bytes = 5 * PIECE + 3 * PAGE;
        let contents: Vec<u8> = (0..bytes).map(|at| (at / PAGE % 251) as u8).collect();
        let from = Arc::new(tempfile::tempfile().unwrap());
        from.write_all_at(&contents, 0).unwrap();
        let files: Vec<_> = (0..3).map(|_| Arc::new(tempfile::tempfile().unwrap())).collect();
        let (_, copied) = Jobs::with_workers(None, |jobs| {
            for number in 0..bytes / PAGE {
                let (file, at) = (files[number as usize % 3].clone(), number * PAGE);
                jobs.add(Job { from: From::File(from.clone(), at), bytes: PAGE, file, offset: at });
            }
            Ok::<(), ()>(())
        });
        copied.unwrap();
        for (number, page) in contents.chunks(PAGE as usize).enumerate() {
            let mut found = vec![0; page.len()];
            read_zero_filled(&files[number % 3], &mut found, number as u64 * PAGE).unwrap();
            assert_eq!(found, page);
        }
    }

    #[test]
    fn what_follows_in_a_file_is_done_together() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut queue = Queue { file: file.clone(), waiting: VecDeque::new(), busy: 1, pieces: Vec::new() };
        let add = |queue: &mut Queue, offset, bytes| {
            let from = From::File(file.clone(), 0);
            queue.waiting.push_back(Job { from, bytes, file: file.clone(), offset });
        };
        assert!(!queue.is_ready(true));
        add(&mut queue, PAGE, PAGE);
        add(&mut queue, 2 * PAGE, PAGE);
        assert!(!queue.is_ready(false) && queue.is_ready(true), "it fills no piece");
        add(&mut queue, 3 * PAGE, PIECE);
        assert!(queue.is_ready(false));
        let mut batches =
            std::iter::from_fn(|| queue.batch()).map(|one| (one.offset, one.bytes, one.parts.len()));
        assert_eq!(batches.next(), Some((PAGE, PIECE - PAGE, 3)), "up to the next boundary");
        assert_eq!(batches.next(), Some((PIECE, 3 * PAGE, 1)));
        assert_eq!(batches.next(), None);
        drop(batches);
        add(&mut queue, 0, PAGE);
        add(&mut queue, 9 * PAGE, PAGE);
        assert_eq!(queue.batch().map(|one| one.parts.len()), Some(1), "there is a gap behind it");
    }

    #[test]
    fn what_waits_is_dropped_when_its_cause_has_failed() {
        let from = Arc::new(tempfile::tempfile().unwrap());
        let (fed, copied) = Jobs::with_workers(None, |jobs| {
            let file = Arc::new(tempfile::tempfile().unwrap());
            jobs.add(Job { from: From::File(from, 0), bytes: 1 << 40, file, offset: 0 });
            Err::<(), _>("no more")
        });
        assert_eq!(fed, Err("no more"));
        copied.unwrap();
    }
}
