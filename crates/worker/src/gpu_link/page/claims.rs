//! Which workers have copies of programs that wait for the link, and how much virtual time those have had.
//!
//! One virtual time passes in all contexts of a GPU. A worker claims the link while copies of its programs wait, or are under way
//! beside others', and says how far they are; who is ahead of the least of all claims lets that one catch up.
//!
//! ```text
//!   queues: a bit for each slot  ─ none but the own: nothing else is looked at
//!   slot:   until when the claim holds, the virtual time that its copies have come to
//!   clock:  the furthest that any copy began: who comes where none claims begins there
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use super::{LinkPage, Use};
use crate::shared::Direction;

/// So long a claim holds, unless it is made again: whoever is killed or stopped holds up nobody longer.
const CLAIMED: u64 = 20_000_000;
/// So long after a copy of a shared context those of others are counted beside it.
const LATELY: u64 = 20_000_000;

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
        self.set_bit(&page.claims);
        if claimant == Claimant::Queue {
            self.set_bit(&page.queues);
        }
    }

    /// A program of this worker's shared context copies.
    pub(crate) fn note_queue(&self, way: Direction, now: u64) {
        self.note_copy(way, now);
        self.set_bit(&self.way(way).queues);
    }

    fn set_bit(&self, word: &AtomicU64) {
        if word.load(Ordering::Relaxed) & self.bit() == 0 {
            word.fetch_or(self.bit(), Ordering::AcqRel);
        }
    }

    fn clear_bit(&self, word: &AtomicU64) {
        if word.load(Ordering::Relaxed) & self.bit() != 0 {
            word.fetch_and(!self.bit(), Ordering::AcqRel);
        }
    }

    /// Nothing of them waits any more.
    pub(crate) fn unclaim(&self, way: Direction) {
        self.own(way).claimed.store(0, Ordering::Release);
        self.clear_bit(&self.way(way).claims);
    }

    /// This worker has no shared context any more.
    pub(super) fn leave_queues(&self, way: Direction) {
        self.unclaim(way);
        self.clear_bit(&self.way(way).queues);
    }

    /// The least virtual time of other workers' claims; none if there are none.
    pub(crate) fn least_claim(&self, way: Direction, now: u64) -> Option<u64> {
        let holds = |claim: &&Use| claim.claimed.load(Ordering::Acquire) > now;
        let claims = self.with_bits(&self.way(way).claims, way).filter(holds);
        claims.map(|claim| claim.virtual_time.load(Ordering::Acquire)).min()
    }

    /// Whether shared contexts of other workers copy, or did lately, so that what is copied beside them is to be counted.
    pub(crate) fn queues_elsewhere(&self, way: Direction, now: u64) -> bool {
        let copies = |queue: &Use| {
            let last = queue.copied.load(Ordering::Acquire);
            last + LATELY > now || queue.claimed.load(Ordering::Acquire) > now
        };
        self.with_bits(&self.way(way).queues, way).any(copies)
    }

    /// What other workers have whose bits are set. That of one that was killed stays until somebody else has its slot.
    fn with_bits(&self, word: &AtomicU64, way: Direction) -> impl Iterator<Item = &Use> {
        let mut bits = word.load(Ordering::Acquire) & !self.bit();
        std::iter::from_fn(move || {
            let slot = bits.trailing_zeros() as usize;
            bits &= bits.wrapping_sub(1);
            self.page().slots.get(slot).map(|slot| &slot[way as usize])
        })
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
        b.note_queue(WAY, now + CLAIMED);
        assert!(a.queues_elsewhere(WAY, now + CLAIMED) && !a.queues_elsewhere(WAY, now + CLAIMED + LATELY));
        drop(b);
        let bits = [&a.way(WAY).claims, &a.way(WAY).queues].map(|word| word.load(Ordering::SeqCst));
        assert_eq!((a.least_claim(WAY, now), bits), (None, [0, 0]));
    }
}
