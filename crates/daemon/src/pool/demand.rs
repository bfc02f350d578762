//! How many workers of a GPU were taken at once of late, and how many a program of several processes takes.
//!
//! At once are those that are taken before the ones taken earlier have been replaced: as many would have to wait for
//! each to find one ready. The most of that within a window is the demand; the window forgets by itself.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Demand {
    /// Taken, and not replaced yet.
    missing: usize,
    missed: Peaks,
}

/// The most of a number within a window.
#[derive(Default)]
pub struct Peaks {
    /// When it was so much that later was not exceeded: the most first.
    peaks: VecDeque<(Instant, usize)>,
}

impl Demand {
    pub fn took(&mut self, now: Instant) {
        self.missing += 1;
        self.missed.note(now, self.missing);
    }

    pub fn replaced(&mut self) {
        self.missing = self.missing.saturating_sub(1);
    }

    /// As many wait as are to, whatever was missing.
    pub fn is_whole(&mut self) {
        self.missing = 0;
    }

    /// The most that were missing at a time within the window before `now`.
    pub fn recent(&mut self, now: Instant, window: Duration) -> usize {
        self.missed.most(now, window)
    }

    /// When [`Demand::recent`] is less, if nothing more is taken.
    pub fn next_change(&self, window: Duration) -> Option<Instant> {
        self.missed.peaks.front().map(|(at, _)| *at + window)
    }
}

impl Peaks {
    pub fn note(&mut self, now: Instant, count: usize) {
        while self.peaks.pop_back_if(|(_, most)| *most <= count).is_some() {}
        self.peaks.push_back((now, count));
    }

    /// The most within the window before `now`; 0 if there was none.
    pub fn most(&mut self, now: Instant, window: Duration) -> usize {
        while self.peaks.pop_front_if(|(at, _)| now.saturating_duration_since(*at) >= window).is_some() {}
        self.peaks.front().map_or(0, |(_, most)| *most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(300);

    struct Scenario {
        now: Instant,
        demand: Demand,
    }

    impl Scenario {
        fn new() -> Scenario {
            Scenario { now: Instant::now(), demand: Demand::default() }
        }

        fn take(&mut self, count: usize) {
            (0..count).for_each(|_| self.demand.took(self.now));
        }

        fn replace(&mut self, count: usize) {
            (0..count).for_each(|_| self.demand.replaced());
        }

        fn after(&mut self, seconds: u64) -> usize {
            self.now += Duration::from_secs(seconds);
            self.demand.recent(self.now, WINDOW)
        }
    }

    #[test]
    fn those_that_were_taken_at_once_are_remembered_for_the_window() {
        let mut scenario = Scenario::new();
        assert_eq!(scenario.after(0), 0);
        scenario.take(8);
        scenario.replace(8);
        assert_eq!([scenario.after(0), scenario.after(299), scenario.after(1)], [8, 8, 0]);
    }

    #[test]
    fn those_that_come_one_after_the_other_want_one() {
        let mut scenario = Scenario::new();
        for _ in 0..20 {
            scenario.take(1);
            scenario.replace(1);
            assert_eq!(scenario.after(1), 1);
        }
    }

    #[test]
    fn who_comes_before_others_were_replaced_counts_with_them() {
        let mut scenario = Scenario::new();
        scenario.take(3);
        scenario.replace(2);
        scenario.take(4);
        assert_eq!(scenario.after(0), 5);
        scenario.demand.is_whole();
        scenario.take(2);
        assert_eq!(scenario.after(0), 5, "that was not long ago");
    }

    #[test]
    fn a_lesser_peak_counts_once_a_greater_one_is_forgotten() {
        let mut scenario = Scenario::new();
        scenario.take(8);
        scenario.demand.is_whole();
        scenario.after(100);
        scenario.take(3);
        scenario.demand.is_whole();
        assert_eq!(scenario.after(199), 8);
        assert_eq!(scenario.demand.next_change(WINDOW), Some(scenario.now + Duration::from_secs(1)));
        assert_eq!(scenario.after(1), 3);
        assert_eq!(scenario.after(100), 0);
        assert_eq!(scenario.demand.next_change(WINDOW), None);
    }

    #[test]
    fn without_a_window_nothing_is_remembered() {
        let mut scenario = Scenario::new();
        scenario.take(8);
        assert_eq!(scenario.demand.recent(scenario.now, Duration::ZERO), 0);
    }
}
