//! What CRIU will ask about a thread that stands, answered before it asks: each question costs it a switch to the tracer and
//! back, and there are some thirty for each thread.
//!
//! The tracer, by which all goes that changes a thread, tells what it knows, and forgets it before it changes anything.
//!
//! The other way, what CRIU has done to a thread that stands, and which is of use only when that goes on, it leaves with the
//! tracer: [`Answers::posted`] is done before anything else that the tracer is asked.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Assist;

/// Answers are known of so many threads at once, so many of each, of so many bytes together: vector registers may have 11 KB.
pub(super) const THREADS: usize = 512;
const ANSWERS: usize = 32;
const ROOM: usize = 20_000;
/// So much is left with the tracer at once, of so many bytes together.
const POSTED: usize = 16;
const POSTED_ROOM: usize = 64 << 10;

/// What is known of all threads; as in `in_criu.h`.
pub(super) type Table = [KnownThread; THREADS];

#[repr(C)]
pub(super) struct KnownThread {
    /// How many answers there are: none while they change.
    count: AtomicU32,
    unused: AtomicU32,
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

/// What is left with the tracer; as in `in_criu.h`.
#[repr(C)]
pub(super) struct PostedTable {
    count: AtomicU32,
    unused: AtomicU32,
    requests: [RawPosted; POSTED],
    bytes: [u8; POSTED_ROOM],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawPosted {
    request: u32,
    thread: u32,
    address: u64,
    data: u64,
    offset: u64,
    length: u64,
}

/// A request of `ptrace` that was left with the tracer.
#[derive(Debug, PartialEq, Eq)]
pub struct Posted {
    pub request: u32,
    pub thread: i32,
    pub address: u64,
    /// The request's last argument, where that is a number.
    pub data: u64,
    /// What that argument points to, where it is a pointer.
    pub bytes: Vec<u8>,
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

    /// Whether threads may have other processors for a while.
    pub fn are_processors_noted(&self) -> bool {
        self.assist.are_processors_noted.load(Ordering::Acquire)
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
        let shared = self.assist.shared();
        shared.thread_ids[place].store(thread as u32, Ordering::Release);
        shared.thread_count.fetch_max(place as u32 + 1, Ordering::Release);
    }

    /// What was left with the tracer since this was asked last, in the order in which CRIU wanted it. CRIU waits for the tracer
    /// meanwhile.
    pub fn posted(&self) -> Vec<Posted> {
        let table = self.assist.shared().posted.get();
        // SAFETY: within the mapping; the count is atomic on both sides.
        let count = unsafe { &(*table).count };
        let waiting = count.load(Ordering::Acquire) as usize;
        let one = |index: usize| {
            // SAFETY: within the table, and the library writes nothing there while CRIU waits.
            let (raw, bytes) = unsafe { ((*table).requests[index], &(&(*table).bytes)[..]) };
            let end = raw.offset.saturating_add(raw.length) as usize;
            Posted {
                request: raw.request,
                thread: raw.thread as i32,
                address: raw.address,
                data: raw.data,
                bytes: bytes.get(raw.offset as usize..end).unwrap_or_default().to_vec(),
            }
        };
        let posted = (0..waiting.min(POSTED)).map(one).collect();
        count.store(0, Ordering::Release);
        posted
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
        assert_eq!((size_of::<RawPosted>(), size_of::<PostedTable>()), (40, 8 + 40 * 16 + (64 << 10)));
    }

    #[test]
    fn what_is_left_is_taken_once_and_in_its_order() {
        let assist = Arc::new(Assist::new(false).unwrap());
        let answers = Answers::new(assist.clone());
        assert_eq!(answers.posted(), []);
        let table = assist.shared().posted.get();
        for (index, request) in [7, 9].into_iter().enumerate() {
            let raw =
                RawPosted { request, thread: 5, address: 1, data: 2, offset: 3 * index as u64, length: 3 };
            // SAFETY: within the mapping, which nobody else has.
            unsafe {
                (*table).requests[index] = raw;
                (&mut (*table).bytes)[3 * index..][..3].fill(request as u8);
                (*table).count.store(index as u32 + 1, Ordering::Release);
            }
        }
        let left: Vec<_> = answers.posted().into_iter().map(|one| (one.request, one.bytes)).collect();
        assert_eq!(left, [(7, vec![7; 3]), (9, vec![9; 3])]);
        assert_eq!(answers.posted(), []);
    }
}
