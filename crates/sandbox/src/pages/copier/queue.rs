//! What is to go to one file, put together to pieces.
//!
//! Memory comes in many small stretches, and the kernel lets one thread at a time write to a file, so that threads which
//! each had a small stretch would only wait for each other: jobs that follow each other are done together, up to the next
//! boundary of a piece.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::super::area::PAGE;
use super::super::contents::filled;
use super::source::From;

/// Small enough to stay in a core's cache between reading and writing; a large page of a file in memory, which the
/// kernel need not clear if it is written whole.
pub(super) const PIECE: u64 = 2 << 20;

/// A hole costs a system call: as much time as copying so much.
const LEAST_HOLE: u64 = 64 << 10;

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

/// So many bytes that are to go to a place in a file.
pub struct Job {
    pub from: From,
    pub bytes: u64,
    pub file: Arc<File>,
    pub offset: u64,
}

/// Jobs that follow each other in a file, or parts of such, within one piece.
pub(super) struct Batch {
    file: Arc<File>,
    offset: u64,
    bytes: u64,
    parts: Vec<(From, u64)>,
}

/// What goes to one file: the kernel lets one thread at a time write to it, so others are looked to first.
pub(super) struct Queue {
    pub file: Arc<File>,
    pub waiting: VecDeque<Job>,
    /// Threads that copy of it.
    pub busy: usize,
    pub pieces: Vec<Piece>,
}

impl Queue {
    pub fn new(file: Arc<File>) -> Queue {
        Queue { file, waiting: VecDeque::new(), busy: 0, pieces: Vec::new() }
    }

    /// What does not fill a piece waits until more has come.
    pub fn is_ready(&self, closed: bool) -> bool {
        let (Some(front), Some(back)) = (self.waiting.front(), self.waiting.back()) else { return false };
        let boundary = front.offset + room(front.offset);
        let reach = (front.offset + front.bytes).max(back.offset + back.bytes);
        closed || reach >= boundary
    }

    pub fn batch(&mut self) -> Option<Batch> {
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
    pub fn copy(&self, block: &mut [u8], digest: Option<Digest>) -> io::Result<Option<Piece>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_in_a_file_is_done_together() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut queue = Queue::new(file.clone());
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
}
