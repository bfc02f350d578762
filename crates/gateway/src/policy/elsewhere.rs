//! On which of a service's GPUs an instance is started that has no arrays to be near, and where one goes on to wait that would wait
//! for longer where it is.
//!
//! ```text
//!   started ─▶ of the GPUs with the most [`Room`] the one with the fewest instances
//!   waits   ─▶ another one has room at once, or has had for a second what others give back ─▶ Move: it claims memory there instead
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::instance::Instance;
use super::{Action, Policy, Stage};
use crate::plan::{Place, Source};

/// How often is looked whether another GPU has room, for as long as an instance waits, and how long it has waited before others go
/// for it there.
pub(super) const LOOKS_AGAIN: Duration = Duration::from_secs(1);

/// What a further instance finds on a GPU: the more of it the less.
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

    fn room(&self, gpu: &str, now: Instant) -> Room {
        let is_avoided = self.avoided.get(gpu).is_some_and(|until| *until > now);
        match is_avoided {
            true => Room::Never,
            false => self.rooms.get(gpu).copied().unwrap_or(Room::AtOnce),
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

    /// Has one that waits for GPU memory wait where there is more room instead; one at a time, for it takes that room.
    pub(super) fn look_elsewhere(&mut self, now: Instant) {
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
        self.instances.values().any(|one| one.stage == Stage::Waiting && one.source.gpus.len() > 1)
    }
}
