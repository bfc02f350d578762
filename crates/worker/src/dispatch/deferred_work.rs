//! What nobody waits for, and what would hold up the program meanwhile: letting go of what a restore has used.
//!
//! The driver waits for all work of the device when memory is unmapped or not pinned any more, and lets nobody else in.
//! So it is done in the first quiet moment after the load, when the program's first work has most likely ended; before a
//! checkpoint; and at the latest after a while.

use std::time::{Duration, Instant};

use super::Dispatcher;

/// Nothing for so long is a quiet moment.
const QUIET: Duration = Duration::from_millis(50);
/// A program that is never quiet is held up after so long.
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct DeferredWork {
    since: Option<Instant>,
    work: Vec<Box<dyn FnOnce() + Send>>,
}

impl DeferredWork {
    pub(crate) fn push(&mut self, work: impl FnOnce() + Send + 'static) {
        self.since.get_or_insert_with(Instant::now);
        self.work.push(Box::new(work));
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
