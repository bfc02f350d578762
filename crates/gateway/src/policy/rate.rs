//! How often something happens of late.

use std::time::{Duration, Instant};

/// What happened so long ago counts for little more than a third.
const MEMORY: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    weight: f64,
    at: Option<Instant>,
}

impl Rate {
    pub fn note(&mut self, now: Instant) {
        (self.weight, self.at) = (self.weight(now) + 1.0, Some(now));
    }

    /// Times a second.
    pub fn of(&self, now: Instant) -> f64 {
        self.weight(now) / MEMORY.as_secs_f64()
    }

    fn weight(&self, now: Instant) -> f64 {
        let passed = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.weight * (-passed / MEMORY.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_long_ago_counts_less() {
        let (mut rate, begin) = (Rate::default(), Instant::now());
        assert_eq!(rate.of(begin), 0.0);
        for second in 0..3000 {
            rate.note(begin + Duration::from_secs(second));
        }
        let end = begin + Duration::from_secs(3000);
        assert!((rate.of(end) - 1.0).abs() < 0.01, "{}", rate.of(end));
        assert!((rate.of(end + MEMORY) - 0.37).abs() < 0.01);
    }
}
