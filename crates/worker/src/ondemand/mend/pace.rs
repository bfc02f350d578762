//! When an epoch is to begin: at a moment that costs the program little, and not too late.

use std::time::{Duration, Instant};

use crate::ondemand::journal::MOST_BYTES;

/// A base may take so small a part of the time since the one before.
const PART: u32 = 20;
/// How old an epoch is at least when the next one begins.
const YOUNG: Duration = Duration::from_millis(50);
/// How old it gets while the program goes on all the time: then it is brought to rest.
const OLD: Duration = Duration::from_millis(500);
/// Nothing may have ended what could be mended for so long before that is begun anew.
const QUIET: Duration = Duration::from_millis(2);
/// A program is held for so long at most, to come to rest, and not again for so long.
const LONGEST_HOLD: Duration = Duration::from_secs(1);
const BETWEEN_HOLDS: Duration = Duration::from_secs(20);
/// What a base may be thought to take before one was taken.
const UNKNOWN: Duration = Duration::from_millis(100);
/// How long it is not looked again for room, or for a state that can be written, after that was not there.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// More than this of the journal and a new epoch begins.
const FULL: usize = MOST_BYTES / 4 * 3;
/// More than this and requests wait for a base that is on its way.
pub(super) const NEARLY_FULL: usize = MOST_BYTES / 8 * 7;

/// Whether an epoch is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    No,
    /// If the program is at rest.
    AtRest,
    /// The program is to come to rest.
    Now,
}

/// The epoch that counts, if one does.
#[derive(Clone, Copy)]
pub(super) struct Epoch {
    /// Something was asked for since.
    pub is_used: bool,
    pub journal_bytes: usize,
}

pub(super) struct EpochPacing {
    /// Since when there is an epoch, or none.
    since: Instant,
    /// When something last ended, or would have ended, what could be mended.
    ended: Instant,
    /// When it was last tried to begin one, and how long that took the last two times.
    tried: Option<Instant>,
    took: [Duration; 2],
    held: Option<Instant>,
    let_go: Option<Instant>,
    /// When it was last found that one cannot begin behind what the GPU has.
    not_cut: Option<Instant>,
}

impl EpochPacing {
    pub(super) fn new(now: Instant) -> EpochPacing {
        EpochPacing {
            since: now,
            ended: now,
            tried: None,
            took: [UNKNOWN; 2],
            held: None,
            let_go: None,
            not_cut: None,
        }
    }

    /// Something happens that ends what could be mended, or would.
    pub(super) fn is_disturbed(&mut self, now: Instant) {
        self.ended = now;
    }

    /// An epoch has ended.
    pub(super) fn has_ended(&mut self, now: Instant) {
        (self.since, self.ended) = (now, now);
    }

    /// It was tried to begin one.
    pub(super) fn has_tried(&mut self, began: Instant, now: Instant, begun: bool) {
        (self.since, self.tried) = (now, Some(now));
        self.held = None;
        match begun {
            true => self.took = [self.took[1], now - began],
            false => self.took = [(now - began).max(AFTER_FAILURE / PART); 2],
        }
    }

    /// One begins at the moment `since`, and its base has been copied by now, which took so long.
    pub(super) fn has_begun_behind(&mut self, since: Instant, now: Instant, took: Duration) {
        (self.since, self.tried, self.held) = (since, Some(now), None);
        self.took = [self.took[1], took];
    }

    /// The program has waited since then, and goes on now if that was too long.
    pub(super) fn is_in_vain(&mut self, since: Instant, now: Instant) -> bool {
        let is_in_vain = now - since >= LONGEST_HOLD;
        if is_in_vain {
            (self.held, self.let_go) = (None, Some(now));
        }
        is_in_vain
    }

    /// One did not begin behind what the GPU has: there is no room, or no memory, or its copy failed.
    pub(super) fn has_not_cut(&mut self, now: Instant) {
        self.not_cut = Some(now);
    }

    /// Whether one may begin behind what the GPU has.
    pub(super) fn may_cut(&self, now: Instant) -> bool {
        self.may_hold(now) && self.not_cut.is_none_or(|since| now - since >= AFTER_FAILURE)
    }

    /// Whether the program may be made to wait.
    fn may_hold(&self, now: Instant) -> bool {
        self.let_go.is_none_or(|since| now - since >= BETWEEN_HOLDS)
    }

    /// For how long after one none begins. One that took long says little: it may have waited for the disk, or for others.
    fn least(&self) -> Duration {
        let cost = self.took[0].min(self.took[1]);
        self.tried.map_or(Duration::ZERO, |_| cost * PART)
    }

    /// There is no room for a while.
    pub(super) fn lacks_room(&mut self, now: Instant) {
        (self.tried, self.took) = (Some(now), [AFTER_FAILURE / PART; 2]);
    }

    /// The program waits until it is at rest.
    pub(super) fn holds(&self) -> bool {
        self.held.is_some()
    }

    pub(super) fn let_go(&mut self) {
        self.held = None;
    }

    /// The program is not at rest: holds it until it is, if it may be.
    pub(super) fn hold(&mut self, due: Due, may_hold: bool, now: Instant) {
        match self.held {
            Some(since) if now - since >= LONGEST_HOLD => (self.held, self.let_go) = (None, Some(now)),
            None if due == Due::Now && may_hold && self.may_hold(now) => self.held = Some(now),
            _ => {}
        }
    }

    /// `is_quiet`: the program asks for nothing.
    pub(super) fn due(&self, epoch: Option<Epoch>, is_quiet: bool, now: Instant) -> Due {
        let (age, least) = (now - self.since, self.least());
        let is_full = epoch.is_some_and(|epoch| epoch.journal_bytes > FULL);
        if self.tried.is_some_and(|tried| now - tried < least) && !is_full {
            return Due::No;
        }
        match epoch {
            None if now - self.ended < QUIET => Due::No,
            None if age >= OLD => Due::Now,
            None => Due::AtRest,
            Some(_) if is_full => Due::Now,
            Some(Epoch { is_used: false, .. }) => Due::No,
            Some(_) if age >= OLD && !is_quiet => Due::Now,
            Some(_) if age >= YOUNG.max(least) => Due::AtRest,
            Some(_) => Due::No,
        }
    }

    /// When to look again, though nothing happens.
    pub(super) fn again(&self) -> Duration {
        self.least().clamp(QUIET, YOUNG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: Option<Epoch> = Some(Epoch { is_used: true, journal_bytes: 100 });

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn a_base_takes_a_small_part_of_the_time() {
        let start = Instant::now();
        let mut pace = EpochPacing::new(start);
        assert_eq!(pace.due(None, true, start), Due::No);
        assert_eq!(pace.due(None, true, start + ms(3)), Due::AtRest);
        pace.has_tried(start + ms(3), start + ms(13), true);
        let begun = start + ms(13);
        assert_eq!(pace.due(USED, true, begun + ms(199)), Due::No);
        assert_eq!(pace.due(USED, false, begun + ms(200)), Due::AtRest);
        assert_eq!(pace.due(USED, false, begun + ms(500)), Due::Now);
        assert_eq!(pace.due(USED, true, begun + ms(500)), Due::AtRest);
        let unused = Some(Epoch { is_used: false, journal_bytes: 0 });
        assert_eq!(pace.due(unused, false, begun + ms(5000)), Due::No);
        let full = Some(Epoch { is_used: false, journal_bytes: FULL + 1 });
        assert_eq!(pace.due(full, false, begun + ms(1)), Due::Now);
    }

    #[test]
    fn one_base_that_took_long_does_not_put_off_the_next_one_for_long() {
        let start = Instant::now();
        let mut pace = EpochPacing::new(start);
        pace.has_tried(start, start + ms(10_000), true);
        let begun = start + ms(10_000);
        assert_eq!(pace.due(USED, true, begun + ms(1999)), Due::No);
        assert_eq!(pace.due(USED, true, begun + ms(2000)), Due::AtRest);
        pace.has_tried(begun + ms(2000), begun + ms(12_000), true);
        assert_eq!(pace.due(USED, true, begun + ms(200_000)), Due::No);
        assert_eq!(pace.due(USED, true, begun + ms(212_000)), Due::AtRest);
    }

    #[test]
    fn after_a_failure_it_is_tried_seldom() {
        let start = Instant::now();
        let mut pace = EpochPacing::new(start);
        pace.has_tried(start, start + ms(1), false);
        assert_eq!(pace.due(None, true, start + ms(900)), Due::No);
        assert_ne!(pace.due(None, true, start + ms(1100)), Due::No);
    }

    #[test]
    fn a_program_is_held_for_a_while_and_then_let_be() {
        let start = Instant::now();
        let mut pace = EpochPacing::new(start);
        pace.hold(Due::AtRest, true, start);
        pace.hold(Due::Now, false, start);
        assert!(!pace.holds());
        pace.hold(Due::Now, true, start);
        assert!(pace.holds());
        pace.hold(Due::Now, true, start + ms(999));
        assert!(pace.holds());
        pace.hold(Due::Now, true, start + ms(1000));
        pace.hold(Due::Now, true, start + ms(20_000));
        assert!(!pace.holds());
        pace.hold(Due::Now, true, start + ms(21_000));
        assert!(pace.holds());
    }

    #[test]
    fn one_that_begins_behind_what_the_gpu_has_is_as_old_as_its_cut() {
        let start = Instant::now();
        let mut pace = EpochPacing::new(start);
        pace.has_begun_behind(start, start + ms(400), ms(1));
        pace.has_begun_behind(start + ms(400), start + ms(800), ms(1));
        assert_eq!(pace.due(USED, false, start + ms(801)), Due::No);
        assert_eq!(pace.due(USED, false, start + ms(821)), Due::AtRest);
        assert_eq!(pace.due(USED, false, start + ms(900)), Due::Now);
    }

    #[test]
    fn a_copy_that_held_the_program_up_is_not_tried_again_for_a_while() {
        let start = Instant::now();
        let mut pace = EpochPacing::new(start);
        assert!(!pace.is_in_vain(start, start + ms(999)) && pace.may_cut(start + ms(999)));
        assert!(pace.is_in_vain(start, start + ms(1000)));
        assert!(!pace.may_cut(start + ms(20_999)) && pace.may_cut(start + ms(21_000)));
        pace.has_not_cut(start + ms(21_000));
        assert!(!pace.may_cut(start + ms(21_999)) && pace.may_cut(start + ms(22_000)));
    }
}
