//! On which of a service's GPUs an instance is started that has no arrays to be near, and where one goes on to wait that would wait
//! for longer where it is.
//!
//! ```text
//!   started ─▶ of the GPUs with the most [`Room`] the one with the fewest instances
//!   waits   ─▶ another one has room at once, or has had for a second what others give back ─▶ Move: it claims memory there instead
//!   sleeps, and would wait to be woken ─▶ the same ─▶ another one is started there; it sleeps on
//!                                                     └ as many as may be: it ends, if no request has ever been sent to it
//! ```
//!
//! What a program has made of its requests is in the instance that had them, and in no image: it is never given up for a start
//! elsewhere.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::instance::Instance;
use super::{Action, Policy, Stage};
use crate::plan::{Place, Source};

/// How often is looked whether another GPU has room, for as long as an instance waits, and how long it has waited before others go
/// for it there.
pub(super) const LOOKS_AGAIN: Duration = Duration::from_secs(1);

/// What a further instance finds on a GPU, or one that is to wake where it sleeps: the more of it the less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// Memory.
    AtOnce,
    /// Memory that others give back for it, for nobody needs them.
    OnceOthersGo,
    Never,
}

impl Policy {
    /// Of whose GPUs is to be known how much room they have: of the image that is being rolled out, or the service's.
    pub fn placed(&self) -> Option<&Source> {
        self.rollout_source().or(self.source.as_ref())
    }

    /// How much room those GPUs have.
    pub fn note_rooms(&mut self, rooms: BTreeMap<String, Room>) {
        self.rooms = rooms;
    }

    /// Instances that sleep on one of several GPUs, and what they are made of: of these is to be known what they find to wake.
    pub fn asleep(&self) -> impl Iterator<Item = (u32, &Source)> {
        let asleep =
            self.instances.iter().filter(|(_, one)| one.stage == Stage::Asleep && one.source.gpus.len() > 1);
        asleep.map(|(number, one)| (*number, &one.source))
    }

    /// What they find.
    pub fn note_rooms_to_wake(&mut self, rooms: BTreeMap<u32, Room>) {
        self.rooms_to_wake = rooms;
    }

    fn is_avoided(&self, gpu: &str, now: Instant) -> bool {
        self.avoided.get(gpu).is_some_and(|until| *until > now)
    }

    fn room(&self, gpu: &str, now: Instant) -> Room {
        match self.is_avoided(gpu, now) {
            true => Room::Never,
            false => self.rooms.get(gpu).copied().unwrap_or(Room::AtOnce),
        }
    }

    /// What an instance finds that is to wake.
    pub(super) fn room_to_wake(&self, number: u32, now: Instant) -> Room {
        let gpu = self.instances.get(&number).map(|one| one.source.need.gpu.as_str());
        match gpu.is_some_and(|gpu| self.is_avoided(gpu, now)) {
            true => Room::Never,
            false => self.rooms_to_wake.get(&number).copied().unwrap_or(Room::AtOnce),
        }
    }

    /// Where a further instance of this source is started.
    pub(super) fn roomiest(&self, source: &Source, now: Instant) -> Option<Source> {
        let order = |place: &&Place| {
            let gpu = &place.counted;
            (self.room(gpu, now), self.count(|one| one.source.need.gpu == *gpu))
        };
        source.gpus.iter().min_by_key(order).and_then(|place| source.on(&place.counted))
    }

    /// What is started instead of waking an instance, which would wait for memory where it sleeps; none if that is no better, or
    /// something were lost.
    pub(super) fn instead_of_waking(&self, number: u32, now: Instant) -> Option<Source> {
        let one = self.instances.get(&number)?;
        let source = self.roomiest(self.source.as_ref()?, now)?;
        let (here, there) = (self.room_to_wake(number, now), self.room(&source.need.gpu, now));
        let has_waited = one.wants_to_wake && now.saturating_duration_since(one.claimed) >= LOOKS_AGAIN;
        let is_better = there < here && (there == Room::AtOnce || has_waited);
        let has_place = !self.is_full() || !one.was_asked;
        (is_better && has_place && self.may_start(now)).then_some(source)
    }

    /// Starts it; the other one sleeps on if there may be both.
    pub(super) fn start_instead(&mut self, number: u32, source: Source, now: Instant) {
        if self.is_full() {
            self.end(number);
        } else if self.instances.get(&number).is_some_and(|one| one.wants_to_wake) {
            self.withdraw(number);
        }
        // Who comes next does not find it any more.
        self.rooms.insert(source.need.gpu.clone(), Room::Never);
        self.start(source, self.generation, now);
    }

    /// Has one that waits for GPU memory wait where there is more room instead; one at a time, for it takes that room.
    pub(super) fn look_elsewhere(&mut self, now: Instant) {
        let to_wake =
            |(_, one): &(&u32, &Instance)| one.wants_to_wake && !one.retiring && !one.is_welcome(now);
        let asleep = self.instances.iter().filter(to_wake).map(|(number, _)| *number);
        let found = asleep.filter_map(|number| Some((number, self.instead_of_waking(number, now)?))).next();
        if let Some((number, source)) = found {
            return self.start_instead(number, source, now);
        }
        let waits = |one: &Instance| one.stage == Stage::Waiting && !one.retiring && !one.is_welcome(now);
        let found = self.instances.iter().filter(|(_, one)| waits(one)).find_map(|(number, one)| {
            let source = self.roomiest(&one.source, now)?;
            let (here, there) = (self.room(&one.source.need.gpu, now), self.room(&source.need.gpu, now));
            let has_waited = now.saturating_duration_since(one.since) >= LOOKS_AGAIN;
            (there < here && (there == Room::AtOnce || has_waited)).then_some((*number, source))
        });
        if let Some((number, source)) = found {
            // Who comes next does not find it any more.
            self.rooms.insert(source.need.gpu.clone(), Room::Never);
            self.instances.entry(number).and_modify(|one| (one.source, one.since) = (source.clone(), now));
            self.actions.push(Action::Move { instance: number, source });
        }
    }

    /// Whether one waits that may find room elsewhere.
    pub(super) fn may_find_room(&self) -> bool {
        self.instances.values().any(|one| one.waits_for_memory() && one.source.gpus.len() > 1)
    }
}
