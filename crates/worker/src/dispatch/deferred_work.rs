//! What nobody waits for, and what would hold up the program meanwhile: letting go of what an image or a restore has used.
//!
//! - Memory is unmapped, caches are closed: by a thread, in the first quiet moment after the load, when the program's first work
//!   has most likely ended; before a checkpoint; and at the latest after a while.
//! - Memory of the host that a GPU is to forget: the driver waits for all work of the GPU, and lets nobody give it more meanwhile,
//!   so that a program whose kernels wait for others would never go on. It is done by the dispatch thread, a little at a time,
//!   while its GPUs have nothing to do, however long that takes to come. The next image uses [what is left](BlockPool) by then.
//!
//! [BlockPool]: crate::image::BlockPool

use std::time::{Duration, Instant};

use super::Dispatcher;
use crate::host_memory::Pinned;

/// Nothing for so long is a quiet moment.
const QUIET: Duration = Duration::from_millis(50);
/// A program that is never quiet is held up after so long.
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct DeferredWork {
    since: Option<Instant>,
    work: Vec<Box<dyn FnOnce() + Send>>,
    pinned: Vec<Box<dyn Pinned>>,
    /// Since when there is memory that GPUs are to forget.
    pinned_since: Option<Instant>,
}

impl DeferredWork {
    /// The work does not wait for what a GPU has to do.
    pub(crate) fn push(&mut self, work: impl FnOnce() + Send + 'static) {
        self.since.get_or_insert_with(Instant::now);
        self.work.push(Box::new(work));
    }

    /// A GPU is to forget this.
    pub(crate) fn unpin(&mut self, memory: impl Pinned + 'static) {
        self.pinned.push(Box::new(memory));
    }

    /// All of it, if it is to be done now.
    fn take(&mut self, quiet: Duration, at_once: bool) -> Vec<Box<dyn FnOnce() + Send>> {
        let waited = self.since.is_some_and(|since| since.elapsed() >= LONGEST);
        if self.since.is_none() || !(at_once || waited || quiet >= QUIET) {
            return Vec::new();
        }
        self.since = None;
        std::mem::take(&mut self.work)
    }
}

impl Dispatcher {
    pub(super) fn look_at_later(&mut self) {
        // A program that has asked for nothing yet is about to, and data that comes would be held up.
        let idle =
            self.client.waiting.is_empty() && self.client.operations != 0 && self.client.data.is_settled();
        let busy = self.activity.is_loading() || !idle;
        let quiet = if busy { Duration::ZERO } else { self.quiet_since.elapsed() };
        let work = self.later.take(quiet, self.is_draining());
        if !work.is_empty() {
            std::thread::spawn(move || work.into_iter().for_each(|work| work()));
        }
    }

    /// Has GPUs that have nothing to do forget a little of what they are to forget; until when it is to be looked again.
    pub(super) fn unpin(&mut self, nap: Duration) -> Duration {
        let is_shared = self.client.gpus.is_shared();
        let block_pool = self.client.gpus.block_pool().clone();
        if self.later.pinned.is_empty() && (is_shared || block_pool.is_empty()) {
            self.later.pinned_since = None;
            return nap;
        }
        let since = *self.later.pinned_since.get_or_insert_with(Instant::now);
        let is_due = self.quiet_since.elapsed() >= QUIET || since.elapsed() >= LONGEST;
        if !is_due
            || self.client.operations == 0
            || !self.client.data.is_settled()
            || !self.client.is_at_rest()
        {
            return nap.min(QUIET);
        }
        if is_shared {
            // The GPU's work is that of others too.
            let pinned = std::mem::take(&mut self.later.pinned);
            std::thread::spawn(move || drop(pinned));
            return nap;
        }
        match self.later.pinned.pop() {
            None => block_pool.unpin_some(),
            Some(mut memory) => match memory.unpin_some() {
                true => self.later.pinned.push(memory),
                false => drop(std::thread::spawn(move || drop(memory))),
            },
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn it_is_done_once_when_it_is_quiet_or_must_be() {
        let mut later = DeferredWork::default();
        assert!(later.take(LONGEST, true).is_empty());
        let (sender, receiver) = channel();
        for number in 0..2 {
            let sender = sender.clone();
            later.push(move || sender.send(number).unwrap());
        }
        assert!(later.take(Duration::ZERO, false).is_empty() && later.take(QUIET / 2, false).is_empty());
        later.take(QUIET, false).into_iter().for_each(|work| work());
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [0, 1]);
        assert!(later.take(QUIET, true).is_empty());
        later.push(|| ());
        assert_eq!(later.take(Duration::ZERO, true).len(), 1);
    }
}
