//! GPU memory that is written to an image from where it lies while the program runs: what a request may change is copied out before
//! the request is done.
//!
//! ```text
//!  program     ┬ stands still ┬─ launch(A) ┄ waits for A ┄ launch ──────────▶
//!  GPU memory   ═══ hashes ═══╡ … │ A │ … │ … │       each piece is checked against its hash
//!  image                      └───┴───┴───┴───┴──▶ parts
//! ```
//!
//! PARALLELGPUOS calls this soft copy-on-write (section 5.1). What kernels may change is told by their arguments, which is a guess:
//! a piece that is not what its hash says ends the image, and its program's images are written as it stands still from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rekindle_ring::Record;

use super::contents::BESIDE;
use super::progress::Progress;
use crate::client::Client;
use crate::ondemand::{Spans, Writes, writes};

/// What is on its way.
pub(crate) struct Guard {
    /// Of runs of chunks.
    progress: Progress,
    /// Addresses of the program, and which buffer they are of.
    buffers: Spans,
    /// By buffer.
    runs: Vec<Vec<usize>>,
    /// Runs that are not copied yet.
    left: AtomicUsize,
    /// The request that was last seen to wait.
    held: AtomicU64,
}

impl Guard {
    /// Of runs, each of so many bytes of the buffer of this number.
    pub(super) fn new(buffers: Spans, of: &[(usize, u64)]) -> Arc<Guard> {
        let sizes: Vec<u64> = of.iter().map(|(_, bytes)| *bytes).collect();
        let progress = Progress::new(&sizes, |_, at| at + BESIDE as u64, &[]);
        let mut runs = vec![Vec::new(); of.iter().map(|(buffer, _)| buffer + 1).max().unwrap_or(0)];
        of.iter().enumerate().for_each(|(run, (buffer, _))| runs[*buffer].push(run));
        let left = AtomicUsize::new(of.len());
        Arc::new(Guard { left, progress, buffers, runs, held: AtomicU64::new(u64::MAX) })
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// A piece of a run is copied.
    pub(super) fn note_copied(&self, run: usize) {
        if self.progress.arrived(run) {
            self.progress.set_whole(run);
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether a request has to wait for what it may change, which is copied next.
    pub(super) fn holds(&self, client: &Client, record: &Record<'_>) -> bool {
        if self.left.load(Ordering::Acquire) == 0 {
            return false;
        }
        let missing = self.missing(&writes(client, record));
        if !missing.is_empty() && self.held.swap(record.ticket, Ordering::Relaxed) != record.ticket {
            self.progress.hurry(&missing);
        }
        !missing.is_empty()
    }

    /// Runs that are not copied yet, of buffers that a request may change.
    fn missing(&self, writes: &Writes) -> Vec<usize> {
        let is_missing = |run: &usize| !self.progress.is_whole(*run);
        let of = |buffers: &mut dyn Iterator<Item = usize>| {
            buffers.filter_map(|buffer| self.runs.get(buffer)).flatten().copied().filter(is_missing).collect()
        };
        match writes {
            Writes::Nothing => Vec::new(),
            Writes::Anything => of(&mut (0..self.runs.len())),
            Writes::These(touched) => of(&mut self.buffers.parts(touched).into_iter()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondemand::TouchedMemory;

    const PIECE: u64 = BESIDE as u64;

    /// Three buffers; of the first two runs are on their way, the second of two pieces, and of the last one is.
    fn guard() -> Arc<Guard> {
        let spans = vec![(0x1000..0x2000, 0), (0x2000..0x3000, 1), (0x8000..0x9000, 2)];
        Guard::new(Spans::new(Vec::new(), spans), &[(0, 1), (0, PIECE + 1), (2, PIECE)])
    }

    fn words(words: &[u64]) -> Writes {
        Writes::These(TouchedMemory { words: words.to_vec(), ..TouchedMemory::default() })
    }

    #[test]
    fn a_request_waits_for_all_of_what_it_names_and_for_nothing_else() {
        let guard = guard();
        assert!(guard.missing(&Writes::Nothing).is_empty());
        assert_eq!(guard.missing(&Writes::Anything), [0, 1, 2]);
        assert!(guard.missing(&words(&[7, 0x2fff])).is_empty());
        assert_eq!(guard.missing(&words(&[0x8fff, 7, 0x1008])), [2, 0, 1]);
        let (first, last) = (0x1fff..0x2001, 0x2fff..0x8001);
        let ranges = Writes::These(TouchedMemory { ranges: vec![first, last], ..TouchedMemory::default() });
        assert_eq!(guard.missing(&ranges), [0, 1, 2]);
    }

    #[test]
    fn a_run_is_copied_when_all_of_its_pieces_are() {
        let guard = guard();
        guard.note_copied(1);
        assert_eq!(guard.missing(&words(&[0x1000])), [0, 1]);
        guard.note_copied(1);
        assert_eq!(guard.missing(&words(&[0x1000])), [0]);
        guard.note_copied(0);
        guard.note_copied(2);
        assert!(guard.missing(&Writes::Anything).is_empty());
        assert_eq!(guard.left.load(Ordering::Acquire), 0);
    }
}
