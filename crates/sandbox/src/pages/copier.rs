//! Copying memory of programs that stand still, and of files, into files, by many threads. Zero pages are left out.

use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

mod queue;
mod source;

use queue::{Batch, PIECE, Queue};
pub use queue::{Digest, Job, Piece};
pub use source::{From, Source};

/// Of files, what is known of their pieces.
#[derive(Default)]
pub struct Pieces(Vec<(Arc<File>, Vec<Piece>)>);

impl Pieces {
    pub fn of(&self, file: &Arc<File>) -> Vec<Piece> {
        let found = self.0.iter().find(|(known, _)| Arc::ptr_eq(known, file));
        found.map(|(_, pieces)| pieces.clone()).unwrap_or_default()
    }
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
            for number in 0..rekindle_parallel::threads() {
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
            state.queues.push(Queue::new(job.file.clone()));
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::area::PAGE;
    use super::super::contents::read_zero_filled;
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
