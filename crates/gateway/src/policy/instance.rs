//! One instance of a service.

use std::time::{Duration, Instant};

use rekindle_protocol::daemon::Level;
use serde::Serialize;

use crate::plan::Source;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// There is no GPU memory for it yet.
    Waiting,
    Starting,
    Running,
    /// Also of one that sleeps, and goes on to a lower level.
    FallingAsleep,
    Asleep,
    Waking,
    Ending,
}

impl Stage {
    pub const ALL: [Stage; 7] = [
        Stage::Waiting,
        Stage::Starting,
        Stage::Running,
        Stage::FallingAsleep,
        Stage::Asleep,
        Stage::Waking,
        Stage::Ending,
    ];
}

#[derive(Clone, Debug)]
pub struct Instance {
    pub stage: Stage,
    /// No two have the same at a time.
    pub slot: u32,
    pub generation: u64,
    /// It takes no more requests, and ends with the last that it has.
    pub retiring: bool,
    pub in_flight: u32,
    /// When it was last given or done with something.
    pub since: Instant,
    pub cannot_sleep: bool,
    /// Where its GPU memory is while it sleeps.
    pub level: Option<Level>,
    /// Since when it sleeps, at whatever level.
    pub asleep_since: Option<Instant>,
    /// Where it is about to be.
    pub goes_to: Option<Level>,
    /// It could not go to a lower level: it tries no more before that.
    pub stays_until: Option<Instant>,
    /// It is not to go there after all.
    pub is_called_off: bool,
    pub has_served: bool,
    /// What it is made of.
    pub source: Source,
    /// It waits for the GPU memory that it needs to wake.
    pub wants_to_wake: bool,
    /// When it began to wait for that last.
    pub claimed: Instant,
    /// A request was sent to it, which it may have kept something of.
    pub was_asked: bool,
    /// It comes for requests' arrays, though others have room for the requests: until then it waits for GPU memory.
    pub welcome_until: Option<Instant>,
}

impl Instance {
    pub fn new(stage: Stage, slot: u32, generation: u64, source: Source, now: Instant) -> Instance {
        Instance {
            stage,
            slot,
            generation,
            retiring: false,
            in_flight: 0,
            since: now,
            cannot_sleep: false,
            level: None,
            asleep_since: None,
            goes_to: None,
            stays_until: None,
            is_called_off: false,
            has_served: false,
            source,
            wants_to_wake: false,
            claimed: now,
            was_asked: false,
            welcome_until: None,
        }
    }

    /// It is there, or will be, for further requests.
    pub fn is_active(&self) -> bool {
        !self.retiring && self.stage != Stage::Ending
    }

    /// It has its GPU half, or is about to.
    pub fn is_awake(&self) -> bool {
        let is_awake =
            matches!(self.stage, Stage::Starting | Stage::Waiting | Stage::Running | Stage::Waking);
        self.is_active() && (is_awake || self.wants_to_wake)
    }

    /// It sleeps, and goes on to a lower level.
    pub fn goes_down(&self) -> bool {
        self.stage == Stage::FallingAsleep && self.level.is_some()
    }

    /// A context is kept for it, if that is wanted for so long; until it is awake, for it takes that to wake.
    pub fn keeps_context(&self, time: Duration, now: Instant) -> bool {
        let sleeps = matches!(self.stage, Stage::Asleep | Stage::Waking) || self.goes_down();
        sleeps && self.asleep_since.is_some_and(|since| now < since + time)
    }

    pub fn waits_for_memory(&self) -> bool {
        self.stage == Stage::Waiting || self.wants_to_wake
    }

    /// It will take requests, and does not yet.
    pub fn is_coming(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Waiting) || self.wants_to_wake
    }

    /// How gladly a request is sent to it; the least first, none if it takes none.
    pub fn rank(&self, concurrency: u32) -> Option<(u32, u32)> {
        let stage = match self.stage {
            Stage::Running => 0,
            Stage::Waking => 1,
            _ => return None,
        };
        (!self.retiring && self.in_flight < concurrency).then_some((stage, self.in_flight))
    }
}
