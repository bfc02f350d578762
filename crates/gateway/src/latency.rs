//! How long requests took of late, from when they came to when their answer began.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;

/// What came before that does not count, nor what came before the last so many.
const SPAN: Duration = Duration::from_secs(300);
const MOST: usize = 2000;

#[derive(Default)]
pub struct Latency {
    last: VecDeque<(Instant, Duration)>,
}

/// What half of the requests did not take longer than, and 99 of 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    pub p50_us: u64,
    pub p99_us: u64,
}

impl Latency {
    pub fn note(&mut self, took: Duration, now: Instant) {
        if self.last.len() == MOST {
            self.last.pop_front();
        }
        self.last.push_back((now, took));
    }

    /// None without a request of late.
    pub fn quantiles(&self, now: Instant) -> Option<Quantiles> {
        let is_late = |at: Instant| now.saturating_duration_since(at) <= SPAN;
        let mut all: Vec<Duration> =
            self.last.iter().filter(|(at, _)| is_late(*at)).map(|(_, took)| *took).collect();
        all.sort_unstable();
        // The one that so many of a hundred do not exceed.
        let of = |hundredths: usize| {
            let found = all.get((all.len() * hundredths).div_ceil(100).checked_sub(1)?)?;
            u64::try_from(found.as_micros()).ok()
        };
        Some(Quantiles { p50_us: of(50)?, p99_us: of(99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_requests_of_late() {
        let (mut latency, begin) = (Latency::default(), Instant::now());
        assert_eq!(latency.quantiles(begin), None);
        latency.note(Duration::from_micros(7), begin);
        assert_eq!(latency.quantiles(begin), Some(Quantiles { p50_us: 7, p99_us: 7 }));
        let later = begin + SPAN + Duration::from_secs(1);
        assert_eq!(latency.quantiles(later), None);
        for number in 1..=200 {
            latency.note(Duration::from_micros(number), later);
        }
        assert_eq!(latency.quantiles(later), Some(Quantiles { p50_us: 100, p99_us: 198 }));
        for _ in 0..MOST {
            latency.note(Duration::from_micros(1), later);
        }
        assert_eq!(latency.quantiles(later), Some(Quantiles { p50_us: 1, p99_us: 1 }));
    }
}
