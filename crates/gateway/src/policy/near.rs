//! Requests with arrays on a GPU: to which of several GPUs they go, and on which one further instances are started.
//!
//! A request goes to an instance on the GPU where its arrays lie, unless that one is much busier than another one: then the other
//! one copies them. It does not wait for what would spare a copy. Where nobody is there for such requests yet, an instance is
//! started beside it, or woken, for the next ones.
//!
//! Source: StreamBox (ATC 2024), section 6.1: where a function takes an array from is chosen for the user.

use std::time::{Duration, Instant};

use super::instance::Instance;
use super::{Policy, Stage};
use crate::plan::Source;

/// How long an instance that nobody has to have waits for GPU memory.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long none is started for requests' arrays on a GPU where one came to nothing, and no other one if there is room elsewhere.
const AVOIDED: Duration = Duration::from_secs(30);

/// Where a request's arrays lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near {
    /// As [`MemoryNeed::gpu`](crate::MemoryNeed) has it.
    pub gpu: String,
    /// There is memory for one more instance there, and nobody has to go for it.
    pub has_room: bool,
}

/// An instance that would take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    /// 0: it runs; 1: it is about to.
    pub stage: u32,
    pub in_flight: u32,
    pub number: u32,
    pub is_near: bool,
}

/// The one with the fewest requests, of equals the first; but one that is near, if it runs as the other one does and has at most
/// half as many more requests than that as an instance may have at once.
pub(super) fn pick(candidates: &[Candidate], concurrency: u32) -> Option<Candidate> {
    let best = *candidates.iter().min()?;
    let near = candidates.iter().filter(|one| one.is_near).min().copied();
    let slack = concurrency.div_ceil(2);
    Some(
        near.filter(|near| near.stage <= best.stage && near.in_flight <= best.in_flight + slack)
            .unwrap_or(best),
    )
}

impl Policy {
    fn is_on(&self, number: u32, gpu: &str) -> bool {
        self.instances.get(&number).is_some_and(|one| one.source.need.gpu == gpu)
    }

    /// The GPU of the last request that waits for one there and that none of those which are coming is for: it has looked last
    /// whether there is room.
    fn wanted(&self) -> Option<&Near> {
        let nears = || self.queue.all().filter_map(|waiting| waiting.near.as_ref());
        let is_wanted = |near: &&Near| {
            let coming = self.count(|one| one.is_coming() && one.source.need.gpu == near.gpu);
            nears().filter(|other| other.gpu == near.gpu).count() > coming * self.plan.concurrency as usize
        };
        nears().filter(is_wanted).last()
    }

    /// What the next instance is made of: on the GPU of the requests that wait if it has room, else where there is room.
    pub(super) fn next_source(&self, now: Instant) -> Option<Source> {
        let source = self.source.as_ref()?;
        let wanted = self.wanted().filter(|near| near.has_room).and_then(|near| source.on(&near.gpu));
        wanted.or_else(|| self.roomiest(source, now)).or_else(|| Some(source.clone()))
    }

    /// Of those that sleep, the one that is woken next: where the arrays are, else where there is room.
    pub(super) fn next_asleep(&self, now: Instant) -> Option<u32> {
        let gpu = self.wanted().map(|near| &near.gpu);
        let sleeps = |number: &u32| {
            self.instances.get(number).is_some_and(|one| one.stage == Stage::Asleep && !one.wants_to_wake)
        };
        let near =
            gpu.and_then(|gpu| self.active().find(|number| sleeps(number) && self.is_on(*number, gpu)));
        near.or_else(|| self.active().filter(sleeps).min_by_key(|number| self.room_to_wake(*number, now)))
    }

    /// A request went elsewhere than to where its arrays lie: has an instance come there for the next ones, if none is there and
    /// none has to go for it.
    pub(super) fn bring_near(&mut self, near: &Near, now: Instant) {
        let is_avoided = self.avoided.get(&near.gpu).is_some_and(|until| *until > now);
        if !near.has_room || is_avoided || self.draining {
            return;
        }
        let there: Vec<u32> = self.active().filter(|number| self.is_on(*number, &near.gpu)).collect();
        let asleep = |number: &u32| {
            self.instances.get(number).is_some_and(|one| one.stage == Stage::Asleep && !one.wants_to_wake)
        };
        let source = self.source.as_ref().and_then(|source| source.on(&near.gpu));
        let number = match (there.iter().copied().find(asleep), source) {
            (Some(number), _) if there.iter().all(asleep) => {
                self.claim_to_wake(number, now);
                number
            }
            (None, Some(source)) if there.is_empty() && !self.is_full() && self.may_start(now) => {
                self.start(source, self.generation, now)
            }
            _ => return,
        };
        self.instances.entry(number).and_modify(|one| one.welcome_until = Some(now + PATIENCE));
    }

    /// One that nobody has to have came to nothing.
    pub(super) fn avoid(&mut self, number: u32, now: Instant) {
        if self.instances.get(&number).is_some_and(|one| one.welcome_until.is_some()) {
            self.avoid_gpu(number, now);
        }
    }

    /// The GPU of an instance is full, whatever is counted.
    pub(super) fn avoid_gpu(&mut self, number: u32, now: Instant) {
        if let Some(one) = self.instances.get(&number).filter(|one| one.source.gpus.len() > 1) {
            self.avoided.insert(one.source.need.gpu.clone(), now + AVOIDED);
        }
    }
}

impl Instance {
    /// It may wait for memory, though nobody has to have it.
    pub(super) fn is_welcome(&self, now: Instant) -> bool {
        self.welcome_until.is_some_and(|until| until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(number: u32, stage: u32, in_flight: u32, is_near: bool) -> Candidate {
        Candidate { stage, in_flight, number, is_near }
    }

    fn picked(candidates: &[Candidate]) -> Option<u32> {
        pick(candidates, 4).map(|one| one.number)
    }

    #[test]
    fn without_arrays_the_least_busy_takes_it() {
        assert_eq!(picked(&[]), None);
        assert_eq!(picked(&[one(1, 0, 2, false), one(2, 0, 1, false), one(3, 0, 1, false)]), Some(2));
        assert_eq!(picked(&[one(1, 1, 0, false), one(2, 0, 3, false)]), Some(2));
    }

    #[test]
    fn the_one_where_the_arrays_are_takes_it_unless_it_is_much_busier() {
        for (near, expected) in [(0, 2), (1, 2), (2, 2), (3, 1)] {
            assert_eq!(picked(&[one(1, 0, 0, false), one(2, 0, near, true)]), Some(expected), "{near}");
        }
        assert_eq!(picked(&[one(1, 0, 0, false), one(2, 1, 0, true)]), Some(1), "it is not awake yet");
        assert_eq!(picked(&[one(1, 1, 0, false), one(2, 1, 1, true)]), Some(2));
        assert_eq!(picked(&[one(1, 0, 1, true), one(2, 0, 0, true), one(3, 0, 0, false)]), Some(2));
    }

    #[test]
    fn with_one_request_at_once_the_one_that_is_free_takes_it() {
        assert_eq!(pick(&[one(1, 0, 0, false), one(2, 0, 0, true)], 1).map(|one| one.number), Some(2));
    }
}
