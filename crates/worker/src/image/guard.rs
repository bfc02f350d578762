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
        let missing = |run: &usize| !self.progress.is_whole(*run);
        let named: Vec<usize> = match writes(client, record) {
            Writes::Nothing => return false,
            Writes::Anything => (0..self.runs.len()).collect(),
            Writes::These(touched) => self.buffers.parts(&touched),
        };
        let runs = named.iter().filter_map(|buffer| self.runs.get(*buffer)).flatten();
        let missing: Vec<usize> = runs.copied().filter(missing).collect();
        if !missing.is_empty() && self.held.swap(record.ticket, Ordering::Relaxed) != record.ticket {
            self.progress.hurry(&missing);
        }
        !missing.is_empty()
    }
}
