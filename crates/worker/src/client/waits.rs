//! When requests of a program waited for bytes: of declared data, or of its image while that is loaded.
//!
//! A time begins with the first request that has to wait, and is over when none does. Who asks has those that are over, once.

use std::collections::VecDeque;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rekindle_protocol::operation::WaitFor;

/// So many are kept until somebody asks; then the oldest go.
const MOST: usize = 64;

#[derive(Default)]
pub(crate) struct Waits {
    since: Option<(WaitFor, SystemTime, Instant)>,
    over: VecDeque<(WaitFor, u64, u64)>,
}

impl Waits {
    /// A request has to wait.
    pub(crate) fn begin(&mut self, what: WaitFor) {
        self.since.get_or_insert_with(|| (what, SystemTime::now(), Instant::now()));
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.since.is_some()
    }

    /// None waits any more.
    pub(crate) fn end(&mut self) {
        let Some((what, begin, since)) = self.since.take() else { return };
        let begin = begin.duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.over.len() == MOST {
            self.over.pop_front();
        }
        self.over.push_back((what, begin.as_micros() as u64, since.elapsed().as_micros() as u64));
    }

    /// Those that are over: for what, when each began, in µs since 1970, and how many µs it took.
    pub(crate) fn take(&mut self, most: usize) -> Vec<(WaitFor, u64, u64)> {
        self.over.drain(..most.min(self.over.len())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_begins_with_the_first_and_is_told_once_it_is_over() {
        let mut waits = Waits::default();
        waits.end();
        waits.begin(WaitFor::Data);
        waits.begin(WaitFor::Image);
        assert!(waits.is_under_way() && waits.take(9).is_empty());
        waits.end();
        assert!(!waits.is_under_way());
        let told = waits.take(9);
        assert!(matches!(told[..], [(WaitFor::Data, begin, took)] if begin > 1 << 50 && took < 1_000_000));
        assert!(waits.take(9).is_empty());
        for _ in 0..2 * MOST {
            waits.begin(WaitFor::Image);
            waits.end();
        }
        assert_eq!((waits.take(4).len(), waits.take(MOST).len()), (4, MOST - 4));
    }
}
