//! How far a load has come: which piece of which part is next, and which parts are there whole.
//!
//! Threads take pieces from the front; whoever needs a part moves it there.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of the part of this number.
pub(super) struct Piece {
    pub number: usize,
    pub range: Range<u64>,
}

impl Piece {
    pub(super) fn count(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

pub(crate) struct Progress {
    /// Parts of which pieces are left to take, the next first.
    queue: Mutex<VecDeque<usize>>,
    parts: Vec<Part>,
}

struct Part {
    /// Where each piece ends.
    ends: Vec<u64>,
    /// Pieces that were taken, and those that are not there yet.
    taken: AtomicUsize,
    missing: AtomicUsize,
    whole: AtomicBool,
}

impl Progress {
    /// Of parts of so many bytes, in this order; parts that it does not name come last. `cut` tells where the piece ends
    /// that begins at a place of a part.
    pub(super) fn new(sizes: &[u64], cut: impl Fn(usize, u64) -> u64, order: &[usize]) -> Progress {
        let part = |(number, bytes): (usize, &u64)| {
            let mut ends = Vec::new();
            let mut at = 0;
            while at < *bytes {
                at = cut(number, at).clamp(at + 1, *bytes);
                ends.push(at);
            }
            let (taken, missing) = (AtomicUsize::new(0), AtomicUsize::new(ends.len()));
            Part { whole: AtomicBool::new(ends.is_empty()), ends, taken, missing }
        };
        let parts: Vec<Part> = sizes.iter().enumerate().map(part).collect();
        let mut listed = vec![false; parts.len()];
        let mut queue = VecDeque::new();
        for number in order.iter().copied().chain(0..parts.len()) {
            if let Some(listed) = listed.get_mut(number)
                && !std::mem::replace(listed, true)
                && !parts[number].ends.is_empty()
            {
                queue.push_back(number);
            }
        }
        Progress { queue: Mutex::new(queue), parts }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.ends.is_empty())
    }

    pub(super) fn next(&self) -> Option<Piece> {
        let mut queue = self.queue();
        let number = *queue.front()?;
        let part = &self.parts[number];
        // Pieces are taken with the queue locked.
        let at = part.taken.fetch_add(1, Ordering::Relaxed);
        let end = *part.ends.get(at)?;
        if at + 1 == part.ends.len() {
            queue.pop_front();
        }
        let start = if at == 0 { 0 } else { part.ends[at - 1] };
        Some(Piece { number, range: start..end })
    }

    /// A piece is there. True if it was the last of its part.
    pub(super) fn arrived(&self, number: usize) -> bool {
        self.parts[number].missing.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The part can be used from now on.
    pub(super) fn set_whole(&self, number: usize) {
        self.parts[number].whole.store(true, Ordering::Release);
    }

    pub(crate) fn is_whole(&self, number: usize) -> bool {
        self.parts[number].whole.load(Ordering::Acquire)
    }

    /// Has these parts loaded before all others, in this order.
    pub(crate) fn hurry(&self, numbers: &[usize]) {
        let mut queue = self.queue();
        for number in numbers.iter().rev() {
            if let Some(at) = queue.iter().position(|queued| queued == number) {
                queue.remove(at);
                queue.push_front(*number);
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<usize>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(progress: &Progress) -> Vec<(usize, Range<u64>)> {
        std::iter::from_fn(|| progress.next().map(|piece| (piece.number, piece.range))).collect()
    }

    #[test]
    fn pieces_come_in_the_order_that_was_wished_and_each_once() {
        let cut = |number: usize, at: u64| at + [2, 4, 4, 2][number];
        let progress = Progress::new(&[5, 3, 0, 2], cut, &[3, 9, 3, 1]);
        assert_eq!(taken(&progress), [(3, 0..2), (1, 0..3), (0, 0..2), (0, 2..4), (0, 4..5)]);
        assert!(progress.is_whole(2) && !progress.is_whole(0));
        let arrived: Vec<bool> = (0..3).map(|_| progress.arrived(0)).collect();
        assert_eq!(arrived, [false, false, true]);
    }

    #[test]
    fn what_is_needed_comes_first_as_far_as_it_was_not_taken() {
        let progress = Progress::new(&[4, 4, 2], |_, at| at + 2, &[]);
        progress.next();
        progress.hurry(&[2, 1]);
        assert_eq!(taken(&progress), [(2, 0..2), (1, 0..2), (1, 2..4), (0, 2..4)]);
        progress.hurry(&[0]);
        assert!(progress.next().is_none());
    }
}
