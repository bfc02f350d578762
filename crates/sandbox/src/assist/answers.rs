//! What CRIU will ask about a thread that stands, answered before it asks: each question costs it a switch to the tracer and
//! back, and there are some thirty for each thread.
//!
//! The tracer, by which all goes that changes a thread, tells what it knows, and forgets it before it changes anything.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Assist;

/// Answers are known of so many threads at once, so many of each, of so many bytes together: vector registers may have 11 KB.
const THREADS: usize = 512;
const ANSWERS: usize = 32;
const ROOM: usize = 20_000;

/// What is known of all threads; as in `in_criu.c`.
pub(super) type Table = [KnownThread; THREADS];

#[repr(C)]
pub(super) struct KnownThread {
    thread: AtomicU32,
    /// How many answers there are: none while they change.
    count: AtomicU32,
    answers: [RawAnswer; ANSWERS],
    bytes: [u8; ROOM],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawAnswer {
    request: u32,
    length: u32,
    address: u64,
    key: u64,
    result: i64,
    offset: u64,
}

/// The answer to a request of `ptrace`.
#[derive(Debug)]
pub struct Answer {
    pub request: u32,
    /// The request's argument, where that is a number.
    pub address: u64,
    /// What else is asked, in what the arguments point to.
    pub key: u64,
    /// What the call returns: an error's number, negative, where it fails.
    pub result: i64,
    /// What the caller is given.
    pub bytes: Vec<u8>,
}

/// The table, for the one who writes it.
pub struct Answers {
    assist: Arc<Assist>,
    /// Where a thread is in the table, and which of its memory is among the answers.
    threads: BTreeMap<i32, (usize, Range<u64>)>,
}

impl Answers {
    /// Of each memory there is one of these.
    pub fn new(assist: Arc<Assist>) -> Answers {
        Answers { assist, threads: BTreeMap::new() }
    }

    /// Tells what is known of a thread that stands, and nothing else any more; `memory` is which of its memory that has.
    /// Nothing of it is told where there is no room.
    pub fn tell(&mut self, thread: i32, memory: Range<u64>, answers: &[Answer]) {
        let next = self.threads.len();
        let (place, known) = self.threads.entry(thread).or_insert((next, 0..0));
        *known = memory;
        let place = *place;
        if place >= THREADS {
            return;
        }
        let base = self.assist.table().cast::<KnownThread>();
        // SAFETY: within the table, and nobody else writes it; whoever reads looks at the count first, which is none until all
        // is there.
        let known = unsafe { &mut *base.add(place) };
        known.count.store(0, Ordering::Release);
        known.thread.store(thread as u32, Ordering::Relaxed);
        let (mut count, mut offset) = (0, 0);
        for answer in answers.iter().take(ANSWERS) {
            let Some(room) = known.bytes.get_mut(offset..offset + answer.bytes.len()) else { continue };
            room.copy_from_slice(&answer.bytes);
            known.answers[count] = RawAnswer {
                request: answer.request,
                length: answer.bytes.len() as u32,
                address: answer.address,
                key: answer.key,
                result: answer.result,
                offset: offset as u64,
            };
            offset += answer.bytes.len();
            count += 1;
        }
        known.count.store(count as u32, Ordering::Release);
    }

    /// The thread is about to be another than was told.
    pub fn forget(&self, thread: i32) {
        if let Some((place, _)) = self.threads.get(&thread).filter(|(place, _)| *place < THREADS) {
            // SAFETY: within the table; the count may be written while it is read.
            unsafe { &(*self.assist.table().cast::<KnownThread>().add(*place)).count }
                .store(0, Ordering::Release);
        }
    }

    /// A word is about to be written: whose answers have it is forgotten.
    pub fn forget_memory(&self, address: u64) {
        let has = |memory: &Range<u64>| memory.start < address.saturating_add(8) && address < memory.end;
        for (thread, _) in self.threads.iter().filter(|(_, (_, memory))| has(memory)) {
            self.forget(*thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_library() {
        assert_eq!((size_of::<RawAnswer>(), size_of::<KnownThread>()), (40, 8 + 40 * 32 + 20_000));
    }
}
