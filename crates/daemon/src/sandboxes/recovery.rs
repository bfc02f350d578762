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

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    pub plan: RecoveryPlan,
    /// For a start without an image.
    pub environment: Vec<(String, String)>,
    pub allowed: Vec<String>,
    /// The images that are kept, the oldest first.
    pub taken: Vec<RecoveryPoint>,
    /// The number of the last image.
    pub number: u64,
    /// The image that is taken: a daemon that comes meanwhile finds it made or not.
    #[serde(default)]
    taking: Option<RecoveryPoint>,
    /// Images beyond the number to be kept that are still there.
    #[serde(default)]
    pub beyond: Vec<String>,
    /// The program's steps when an image was last due.
    #[serde(default)]
    pub steps: u64,
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
    /// When the user last sent it a signal, since 1970; 0: never.
    asked_unix_ms: u64,
    /// When this run of the program ended, since 1970.
    ended_unix_ms: u64,
    /// That end was asked about: a daemon that comes meanwhile counts it once.
    is_counted: bool,
    /// It is not brought back any more.
    pub over: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryPoint {
    pub image: String,
    /// In the program's own time, and since 1970.
    at_ms: u64,
    unix_ms: u64,
    #[serde(default)]
    steps: u64,
    /// A program that was restored from it was ended, since not all of it could be loaded.
    #[serde(default)]
    is_suspect: bool,
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
    since_1970_ms(SystemTime::now())
}

pub fn since_1970_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Recovery {
    pub fn new(plan: RecoveryPlan, environment: Vec<(String, String)>, allowed: Vec<String>) -> Recovery {
        Recovery { plan, environment, allowed, began_unix_ms: unix_ms(), ..Recovery::default() }
    }

    /// Of a program that leaves for another node, at this time: none of its images are there, and another clock.
    pub fn leaves(mut self, now: u64) -> Recovery {
        (self.began_ms, self.began_unix_ms) = (self.own_ms(now), 0);
        (self.taken, self.number, self.taking, self.beyond) = (Vec::new(), 0, None, Vec::new());
        self.asked_unix_ms = 0;
        self
    }

    /// Of a program that has come from another node, at this time.
    pub fn arrives(mut self, now: u64) -> Recovery {
        self.began_unix_ms = now;
        self
    }

    /// Whether a failure now would take it back to its beginning, though it was imaged before.
    pub fn lacks_image(&self) -> bool {
        self.taken.is_empty() && self.began_ms > 0
    }

    fn own_ms(&self, now: u64) -> u64 {
        self.began_ms + now.saturating_sub(self.began_unix_ms)
    }

    /// An image of this name is about to be taken, at this time.
    pub fn takes(&mut self, image: String, now: u64) {
        let (at_ms, steps) = (self.own_ms(now), self.steps);
        self.taking = Some(RecoveryPoint { image, at_ms, unix_ms: now, steps, is_suspect: false });
    }

    /// The image that was taken last, as far as is known.
    pub fn taking(&self) -> Option<&str> {
        self.taking.as_ref().map(|taking| taking.image.as_str())
    }

    /// That image was made, or was not.
    pub fn took(&mut self, number: u64, is_made: bool) {
        let Some(taken) = self.taking.take().filter(|_| is_made) else { return };
        self.number = number;
        self.taken.push(taken);
        let beyond = self.taken.len().saturating_sub(self.plan.keep as usize);
        self.beyond.extend(self.taken.drain(..beyond).map(|taken| taken.image));
    }

    /// Not all of an image could be loaded.
    pub fn suspects(&mut self, image: &str) {
        let named = self.taken.iter_mut().filter(|taken| taken.image == image);
        named.for_each(|taken| taken.is_suspect = true);
    }

    /// All that it may go on from, the oldest first.
    pub fn images(&self) -> impl Iterator<Item = &String> {
        self.taken.iter().map(|taken| &taken.image)
    }

    /// What it may go on from, the best first: the newest, and only then those that could not be loaded.
    pub fn candidates(&self) -> Vec<RecoveryPoint> {
        let mut all: Vec<RecoveryPoint> = self.taken.iter().rev().cloned().collect();
        all.sort_by_key(|taken| taken.is_suspect);
        all
    }

    pub fn asked(&mut self, now: u64) {
        self.asked_unix_ms = now;
    }

    /// The program ended, at this time, or if that is a guess, not before its last image.
    pub fn ended(&mut self, at: u64) {
        self.ended_unix_ms = at.max(self.taken.last().map_or(0, |taken| taken.unix_ms));
    }

    /// What comes after such an end.
    pub fn after(&mut self, end: End) -> Next {
        // The clock may have been set meanwhile.
        let since_asked = self.ended_unix_ms.abs_diff(self.asked_unix_ms);
        let was_asked = since_asked < ASKED.as_millis() as u64;
        let (Some(most), End::Failed(code), false, false) = (self.plan.restarts, end, was_asked, self.over)
        else {
            self.over = true;
            return Next::Nothing;
        };
        if std::mem::replace(&mut self.is_counted, true) {
            return Next::Again(self.delay());
        }
        let at = self.own_ms(self.ended_unix_ms);
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
        if self.over {
            return Next::Nothing;
        }
        self.failed(self.plan.restarts.unwrap_or(0), why.to_string())
    }

    fn failed(&mut self, most: u32, how: String) -> Next {
        self.failures += 1;
        if self.failures <= most {
            return Next::Again(self.delay());
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

    /// Before the next try.
    fn delay(&self) -> Duration {
        match self.failures {
            0 | 1 => Duration::ZERO,
            more => FIRST_DELAY.saturating_mul(1 << (more - 1).min(16)).min(LONGEST_DELAY),
        }
    }

    /// It is about to run again from this image, or from its beginning.
    pub fn goes_on(&mut self, from: Option<&RecoveryPoint>, now: u64) {
        let at_ms = from.map_or(0, |taken| taken.at_ms);
        self.steps = from.map_or(0, |taken| taken.steps);
        self.repeated_ms += self.own_ms(self.ended_unix_ms).saturating_sub(at_ms);
        self.lost_ms += now.saturating_sub(self.ended_unix_ms);
        self.recoveries += 1;
        self.is_counted = false;
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
            images: self.images().cloned().collect(),
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
        let plan = RecoveryPlan { every_ms, steps: None, keep: 2, restarts };
        Recovery { began_unix_ms: 1_000_000, ..Recovery::new(plan, Vec::new(), Vec::new()) }
    }

    fn after(all: &mut Recovery, end: End, at: u64) -> Next {
        all.ended(at);
        all.after(end)
    }

    fn take(all: &mut Recovery, image: &str, at: u64) {
        all.takes(image.into(), at);
        all.took(all.number + 1, true);
    }

    #[test]
    fn as_many_images_are_kept_as_are_wanted() {
        let mut all = recovery(Some(10), None);
        take(&mut all, "a", 1_000_010);
        take(&mut all, "b", 1_000_020);
        assert_eq!(all.beyond, [""; 0]);
        take(&mut all, "c", 1_000_030);
        assert_eq!(
            (&all.beyond[..], &all.shown().images[..]),
            (&["a".into()][..], &["b".into(), "c".into()][..])
        );
        all.takes("d".into(), 1_000_040);
        assert_eq!(all.taking(), Some("d"));
        all.took(4, false);
        assert_eq!((all.taking(), all.number, all.taken.len()), (None, 3, 2));
    }

    #[test]
    fn what_could_not_be_loaded_comes_last() {
        let mut all = recovery(Some(10), Some(3));
        all.plan.keep = 3;
        for (image, at) in [("a", 1_000_010), ("b", 1_000_020), ("c", 1_000_030)] {
            take(&mut all, image, at);
        }
        let names =
            |all: &Recovery| all.candidates().into_iter().map(|taken| taken.image).collect::<Vec<_>>();
        assert_eq!(names(&all), ["c", "b", "a"]);
        all.suspects("c");
        all.suspects("another program's");
        assert_eq!(names(&all), ["b", "a", "c"]);
    }

    #[test]
    fn at_another_node_its_own_time_goes_on_by_the_clock_there() {
        let mut here = recovery(Some(1000), Some(3));
        take(&mut here, "a", 1_005_000);
        here.asked(1_009_000);
        // A day before.
        let mut there = here.leaves(1_010_000).arrives(500_000);
        assert!(there.lacks_image());
        assert_eq!(after(&mut there, End::Failed(Some(1)), 502_000), Next::Again(Duration::ZERO));
        there.goes_on(None, 502_000);
        assert_eq!(there.shown().repeated_ms, 12_000);
        take(&mut there, "b", 503_000);
        assert!(!there.lacks_image());
    }

    #[test]
    fn what_was_wanted_is_not_brought_back() {
        let with = || recovery(None, Some(3));
        assert_eq!(after(&mut with(), End::Wanted, 1_060_000), Next::Nothing);
        assert_eq!(after(&mut recovery(None, None), End::Failed(Some(1)), 1_060_000), Next::Nothing);
        let mut asked = with();
        asked.asked(1_059_000);
        assert_eq!(after(&mut asked, End::Failed(Some(143)), 1_060_000), Next::Nothing);
        assert!(asked.over);
        let mut earlier = with();
        earlier.asked(1_030_000);
        assert_eq!(after(&mut earlier, End::Failed(Some(1)), 1_060_000), Next::Again(Duration::ZERO));
        // The clock was set back meanwhile.
        let mut earlier = with();
        earlier.asked(4_000_000);
        assert_eq!(after(&mut earlier, End::Failed(Some(1)), 1_060_000), Next::Again(Duration::ZERO));
    }

    #[test]
    fn a_loop_ends_and_progress_does_not() {
        let mut stuck = recovery(Some(1000), Some(2));
        take(&mut stuck, "a", 1_005_000);
        let taken = stuck.taken[0].clone();
        let mut now = 1_008_000;
        let mut delays = Vec::new();
        let reason = loop {
            match after(&mut stuck, End::Failed(Some(3)), now) {
                Next::Again(delay) => delays.push(delay),
                Next::Up(reason) => break reason,
                Next::Nothing => panic!("it was not brought back"),
            }
            stuck.goes_on(Some(&taken), now + 100);
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
            take(&mut farther, "a", now);
            let taken = farther.taken.last().unwrap().clone();
            now += 100;
            assert_eq!(after(&mut farther, End::Failed(None), now), Next::Again(Duration::ZERO));
            farther.goes_on(Some(&taken), now);
        }
        assert_eq!(farther.shown().repeated_ms, 1000);
    }

    #[test]
    fn an_end_counts_once_and_what_was_ended_meanwhile_stays_ended() {
        let mut all = recovery(None, Some(2));
        assert_eq!(after(&mut all, End::Failed(Some(1)), 1_060_000), Next::Again(Duration::ZERO));
        // The next daemon asks again.
        assert_eq!(all.after(End::Failed(Some(1))), Next::Again(Duration::ZERO));
        assert_eq!(all.stayed("no GPU"), Next::Again(Duration::from_millis(500)));
        assert_eq!(all.after(End::Failed(Some(1))), Next::Again(Duration::from_millis(500)));
        // A machine that was away for a day.
        all.goes_on(None, 87_460_000);
        assert_eq!((all.shown().repeated_ms, all.shown().lost_ms), (60_000, 86_400_000));
        assert_eq!(after(&mut all, End::Failed(Some(1)), 87_461_000), Next::Up(
            "it is not brought back any more: it failed 3 times without coming farther (the last with code 1); there is no image of it".into()
        ));
        let mut ended = recovery(None, Some(2));
        after(&mut ended, End::Failed(None), 1_060_000);
        ended.over = true;
        assert_eq!(ended.stayed("no GPU"), Next::Nothing);
    }
}
