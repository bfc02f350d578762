//! Rounds of calls that a program makes while it is brought to a stand, whose GPU work waits for what it has not asked for yet.

use std::time::Duration;

const PATIENCE: Duration = Duration::from_millis(5);
/// How much longer work is waited for in each round, and how many more calls each thread makes.
const LONGER: f32 = 1.15;
const MORE_CALLS: f32 = 1.3;
const MOST_CALLS: f32 = 1000.0;

/// Which round is next.
pub struct Rounds {
    first_patience: Duration,
    made: i32,
}

impl Rounds {
    /// Before the first one work is waited for as long as this.
    pub fn new(first_patience: Duration) -> Rounds {
        Rounds { first_patience, made: 0 }
    }

    /// How long work is waited for before the next one: longer and longer, for what does end by itself.
    pub fn patience(&self) -> Duration {
        match self.made {
            0 => self.first_patience,
            made => PATIENCE.mul_f32(LONGER.powi(made - 1)),
        }
    }

    /// How many calls each thread makes in the one that begins now.
    pub fn begin(&mut self) -> u32 {
        self.made += 1;
        MORE_CALLS.powi(self.made - 1).min(MOST_CALLS) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_few_at_first_and_work_is_waited_for_longer_and_longer() {
        let mut rounds = Rounds::new(Duration::from_millis(50));
        assert_eq!(rounds.patience(), Duration::from_millis(50));
        let calls: Vec<u32> = (0..6).map(|_| rounds.begin()).collect();
        assert_eq!(calls, [1, 1, 1, 2, 2, 3]);
        let (mut waited, mut made) = (Duration::ZERO, 0);
        while waited < Duration::from_secs(30) {
            let before = rounds.patience();
            made += rounds.begin();
            assert!(rounds.patience() > before);
            waited += before;
        }
        assert!((10_000..50_000).contains(&made), "{made}");
    }
}
