//! Which workers have copies of programs that wait for the link, and how much virtual time those have had.
//!
//! One virtual time passes in all contexts of a GPU. A worker claims the link while copies of its programs wait, and says how far
//! they are; who is ahead of the least of all claims lets that one catch up.
//!
//! ```text
//!   claims: a bit for each slot  ─ none but the own: nothing else is looked at
//!   slot:   until when the claim holds, the virtual time that its copies have come to
//!   clock:  the furthest that any copy began: who comes where none claims begins there
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use super::{LinkPage, Use};
use crate::shared::Direction;

/// So long a claim holds, unless it is made again: whoever is killed or stopped holds up nobody longer.
const CLAIMED: u64 = 20_000_000;

/// Whose copies are claimed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimant {
    /// Those of a shared context, which wait for each other and for other claims.
    Queue,
    /// Those of a program with a context of its own, which wait for nobody.
    Program,
}

impl LinkPage {
    fn bit(&self) -> u64 {
        1 << self.slot
    }

    /// Copies of programs of this worker's wait, the first of them at this virtual time. It has to be said again before it lapses.
    pub(crate) fn claim(&self, way: Direction, claimant: Claimant, time: u64, now: u64) {
        let (own, page) = (self.own(way), self.way(way));
        own.virtual_time.store(time, Ordering::Release);
        own.claimed.store(now + CLAIMED, Ordering::Release);
        let set = |word: &AtomicU64| {
            if word.load(Ordering::Relaxed) & self.bit() == 0 {
                word.fetch_or(self.bit(), Ordering::AcqRel);
            }
        };
        set(&page.claims);
        if claimant == Claimant::Queue {
            set(&page.queues);
        }
    }

    /// Nothing of them waits any more.
    pub(crate) fn unclaim(&self, way: Direction) {
        self.own(way).claimed.store(0, Ordering::Release);
        for word in [&self.way(way).claims, &self.way(way).queues] {
            if word.load(Ordering::Relaxed) & self.bit() != 0 {
                word.fetch_and(!self.bit(), Ordering::AcqRel);
            }
        }
    }

    /// The least virtual time of other workers' claims; none if there are none.
    pub(crate) fn least_claim(&self, way: Direction, now: u64) -> Option<u64> {
        let claims = self.claims_elsewhere(&self.way(way).claims, way, now);
        claims.map(|claim| claim.virtual_time.load(Ordering::Acquire)).min()
    }

    /// Whether other workers with shared contexts claim the link, so that what is copied beside them is to be counted.
    pub(crate) fn queues_elsewhere(&self, way: Direction, now: u64) -> bool {
        self.claims_elsewhere(&self.way(way).queues, way, now).next().is_some()
    }

    fn claims_elsewhere(&self, word: &AtomicU64, way: Direction, now: u64) -> impl Iterator<Item = &Use> {
        let mut bits = word.load(Ordering::Acquire) & !self.bit();
        let slots = std::iter::from_fn(move || {
            let slot = bits.trailing_zeros() as usize;
            bits &= bits.wrapping_sub(1);
            self.page().slots.get(slot).map(|slot| &slot[way as usize])
        });
        // The bit of one that was killed stays until somebody else has its slot.
        slots.filter(move |claim| claim.claimed.load(Ordering::Acquire) > now)
    }

    /// A copy began at this virtual time.
    pub(crate) fn advance_clock(&self, way: Direction, time: u64) {
        let clock = &self.way(way).clock;
        if clock.load(Ordering::Relaxed) < time {
            clock.fetch_max(time, Ordering::AcqRel);
        }
    }

    /// Where the copies of a worker begin that has had none: with the least of those that wait, so that none saves up turns.
    pub(crate) fn first_time(&self, way: Direction, now: u64) -> u64 {
        self.least_claim(way, now).unwrap_or_else(|| self.way(way).clock.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_link::now;

    const WAY: Direction = Direction::ToGpu;

    #[test]
    fn the_least_of_the_others_claims_counts_until_it_is_over_or_lapses() {
        let directory = tempfile::tempdir().unwrap();
        let open = || LinkPage::open(directory.path(), &[7; 16]).unwrap().unwrap();
        let [a, b, c] = [open(), open(), open()];
        let now = now();
        assert_eq!((a.least_claim(WAY, now), a.first_time(WAY, now)), (None, 0));
        b.claim(WAY, Claimant::Queue, 70, now);
        c.claim(WAY, Claimant::Program, 50, now);
        assert_eq!([&a, &b, &c].map(|page| page.least_claim(WAY, now)), [Some(50), Some(50), Some(70)]);
        assert_eq!([&a, &b, &c].map(|page| page.queues_elsewhere(WAY, now)), [true, false, true]);
        assert_eq!(a.least_claim(Direction::ToHost, now), None);
        a.advance_clock(WAY, 90);
        a.advance_clock(WAY, 80);
        assert_eq!((a.first_time(WAY, now), a.first_time(WAY, now + CLAIMED)), (50, 90));
        c.unclaim(WAY);
        assert_eq!(a.least_claim(WAY, now), Some(70));
        // Whoever is stopped claims nothing after a while, and whoever has ended nothing at once.
        assert_eq!(a.least_claim(WAY, now + CLAIMED), None);
        assert!(!a.queues_elsewhere(WAY, now + CLAIMED));
        drop(b);
        assert_eq!((a.least_claim(WAY, now), a.way(WAY).claims.load(Ordering::SeqCst)), (None, 0));
    }
}
