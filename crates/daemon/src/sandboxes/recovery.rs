//! What is kept of a program that is to be brought back, and what comes after an end of it.
//!
//! Times are the program's own: how long it has run, from its first start, without what was repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rekindle_protocol::daemon::{Recovery as Shown, RecoveryPlan};
use serde::{Deserialize, Serialize};

/// A program that ends so soon after the user has sent it a signal was ended by the user.
const ASKED: Duration = Duration::from_secs(10);
/// How long the second try waits; each further one twice as long.
const FIRST_DELAY: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// How much farther a program must come than ever before for its failures to be counted anew, without images.
const FARTHER_MS: u64 = 1000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    pub plan: RecoveryPlan,
    /// For a start without an image.
    pub environment: Vec<(String, String)>,
    pub allowed: Vec<String>,
    /// The images that are kept, the oldest first.
    pub taken: Vec<Taken>,
    /// The number of the last image.
    pub number: u64,
    /// When this run of the program began: since 1970, and of its own time.
    began_unix_ms: u64,
    began_ms: u64,
    /// How far it ever came before it failed.
    farthest_ms: u64,
    /// Failures since it came farther.
    failures: u32,
    recoveries: u32,
    repeated_ms: u64,
    lost_ms: u64,
    /// When the user last sent it a signal, since 1970.
    asked_unix_ms: u64,
    /// It is not brought back any more.
    pub over: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    pub image: String,
    at_ms: u64,
}

/// How a run of a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself with this code, 128 and more for a signal; none if nobody saw it.
    Failed(Option<i32>),
    /// As the program or the user wanted it.
    Wanted,
}

/// What comes after it.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// It is given up, for this reason.
    Up(String),
    /// It is brought back after so long.
    Again(Duration),
}

pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Recovery {
    pub fn new(plan: RecoveryPlan, environment: Vec<(String, String)>, allowed: Vec<String>) -> Recovery {
        Recovery {
            plan,
            environment,
            allowed,
            taken: Vec::new(),
            number: 0,
            began_unix_ms: unix_ms(),
            began_ms: 0,
            farthest_ms: 0,
            failures: 0,
            recoveries: 0,
            repeated_ms: 0,
            lost_ms: 0,
            asked_unix_ms: 0,
            over: false,
        }
    }

    fn own_ms(&self, now: u64) -> u64 {
        self.began_ms + now.saturating_sub(self.began_unix_ms)
    }

    /// An image was begun at this time; what is beyond the number to be kept comes back.
    pub fn took(&mut self, image: String, begun: u64) -> Vec<String> {
        self.taken.push(Taken { image, at_ms: self.own_ms(begun) });
        let beyond = self.taken.len().saturating_sub(self.plan.keep as usize);
        self.taken.drain(..beyond).map(|taken| taken.image).collect()
    }

    pub fn asked(&mut self, now: u64) {
        self.asked_unix_ms = now;
    }

    /// The program ended, at this time.
    pub fn ended(&mut self, end: End, now: u64) -> Next {
        let was_asked = now.saturating_sub(self.asked_unix_ms) < ASKED.as_millis() as u64;
        let (Some(most), End::Failed(code), false, false) = (self.plan.restarts, end, was_asked, self.over)
        else {
            self.over = true;
            return Next::Nothing;
        };
        let at = self.own_ms(now);
        if at > self.farthest_ms + self.plan.every_ms.unwrap_or(FARTHER_MS) {
            self.failures = 0;
        }
        self.farthest_ms = self.farthest_ms.max(at);
        self.failed(
            most,
            code.map_or("nobody saw how".to_string(), |code| format!("the last with code {code}")),
        )
    }

    /// It could not be brought back.
    pub fn stayed(&mut self, why: &str) -> Next {
        self.failed(self.plan.restarts.unwrap_or(0), why.to_string())
    }

    fn failed(&mut self, most: u32, how: String) -> Next {
        self.failures += 1;
        if self.failures <= most {
            let doubled = FIRST_DELAY.saturating_mul(1 << (self.failures - 1).min(16));
            return Next::Again(if self.failures == 1 { Duration::ZERO } else { doubled.min(LONGEST_DELAY) });
        }
        self.over = true;
        let left = match self.taken.last() {
            Some(taken) => format!("its last image is {:?}", taken.image),
            None => "there is no image of it".to_string(),
        };
        Next::Up(format!(
            "it is not brought back any more: it failed {} times without coming farther ({how}); {left}",
            self.failures
        ))
    }

    /// It is about to run again from this image, or from its beginning; it ended at the first of these times.
    pub fn goes_on(&mut self, from: Option<&Taken>, ended: u64, now: u64) {
        let at_ms = from.map_or(0, |taken| taken.at_ms);
        self.repeated_ms += self.own_ms(ended).saturating_sub(at_ms);
        self.lost_ms += now.saturating_sub(ended);
        self.recoveries += 1;
        (self.began_ms, self.began_unix_ms) = (at_ms, now);
    }

    /// Whether the program is brought back if it fails.
    pub fn restarts(&self) -> bool {
        !self.over && self.plan.restarts.is_some()
    }

    /// Whether it is not its first run.
    pub fn has_failed(&self) -> bool {
        self.recoveries > 0
    }

    pub fn shown(&self) -> Shown {
        Shown {
            plan: self.plan.clone(),
            images: self.taken.iter().map(|taken| taken.image.clone()).collect(),
            recoveries: self.recoveries,
            repeated_ms: self.repeated_ms,
            lost_ms: self.lost_ms,
            over: self.over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recovery(every_ms: Option<u64>, restarts: Option<u32>) -> Recovery {
        let plan = RecoveryPlan { every_ms, keep: 2, restarts };
        Recovery { began_unix_ms: 1_000_000, ..Recovery::new(plan, Vec::new(), Vec::new()) }
    }

    #[test]
    fn as_many_images_are_kept_as_are_wanted() {
        let mut all = recovery(Some(10), None);
        assert!(all.took("a".into(), 1_000_010).is_empty() && all.took("b".into(), 1_000_020).is_empty());
        assert_eq!(all.took("c".into(), 1_000_030), ["a"]);
        assert_eq!(all.shown().images, ["b", "c"]);
    }

    #[test]
    fn what_was_wanted_is_not_brought_back() {
        let with = || recovery(None, Some(3));
        assert_eq!(with().ended(End::Wanted, 1_060_000), Next::Nothing);
        assert_eq!(recovery(None, None).ended(End::Failed(Some(1)), 1_060_000), Next::Nothing);
        let mut asked = with();
        asked.asked(1_059_000);
        assert_eq!(asked.ended(End::Failed(Some(143)), 1_060_000), Next::Nothing);
        assert!(asked.over);
        let mut earlier = with();
        earlier.asked(1_030_000);
        assert_eq!(earlier.ended(End::Failed(Some(1)), 1_060_000), Next::Again(Duration::ZERO));
    }

    #[test]
    fn a_loop_ends_and_progress_does_not() {
        let mut stuck = recovery(Some(1000), Some(2));
        stuck.took("a".into(), 1_005_000);
        let taken = stuck.taken[0].clone();
        let mut now = 1_008_000;
        let mut delays = Vec::new();
        let reason = loop {
            match stuck.ended(End::Failed(Some(3)), now) {
                Next::Again(delay) => delays.push(delay),
                Next::Up(reason) => break reason,
                Next::Nothing => panic!("it was not brought back"),
            }
            stuck.goes_on(Some(&taken), now, now + 100);
            // As far as before.
            now += 100 + 3000;
        };
        assert_eq!(delays, [Duration::ZERO, Duration::from_millis(500)]);
        assert!(
            reason.contains("failed 3 times") && reason.contains("code 3") && reason.contains("\"a\""),
            "{reason}"
        );
        let shown = stuck.shown();
        assert_eq!((shown.recoveries, shown.repeated_ms, shown.lost_ms), (2, 6000, 200));

        let (mut farther, mut now) = (recovery(Some(1000), Some(1)), 1_000_000);
        for _ in 0..10 {
            now += 2000;
            farther.took("a".into(), now);
            let taken = farther.taken.last().unwrap().clone();
            now += 100;
            assert_eq!(farther.ended(End::Failed(None), now), Next::Again(Duration::ZERO));
            farther.goes_on(Some(&taken), now, now);
        }
        assert_eq!(farther.shown().repeated_ms, 1000);
    }
}
