//! One instance of a service.

use std::time::Instant;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    Starting,
    Running,
    FallingAsleep,
    Asleep,
    Waking,
    Ending,
}

#[derive(Clone, Debug)]
pub struct Instance {
    pub stage: Stage,
    /// No two have the same at a time.
    pub seat: u32,
    pub generation: u64,
    /// It takes no more requests, and ends with the last that it has.
    pub retiring: bool,
    pub in_flight: u32,
    /// When it was last given or done with something.
    pub since: Instant,
    pub cannot_sleep: bool,
    pub has_served: bool,
}

impl Instance {
    pub fn new(stage: Stage, seat: u32, generation: u64, now: Instant) -> Instance {
        let (retiring, cannot_sleep, has_served) = (false, false, false);
        Instance { stage, seat, generation, retiring, in_flight: 0, since: now, cannot_sleep, has_served }
    }

    /// It is there, or will be, for further requests.
    pub fn is_active(&self) -> bool {
        !self.retiring && self.stage != Stage::Ending
    }

    /// It has its GPU half, or is about to.
    pub fn is_awake(&self) -> bool {
        self.is_active() && matches!(self.stage, Stage::Starting | Stage::Running | Stage::Waking)
    }

    /// How gladly a request is sent to it; the least first, none if it takes none.
    pub fn rank(&self, concurrency: u32) -> Option<(u32, u32)> {
        let stage = match self.stage {
            Stage::Running => 0,
            Stage::Waking => 1,
            Stage::Asleep => 2,
            Stage::Starting | Stage::FallingAsleep | Stage::Ending => return None,
        };
        (!self.retiring && self.in_flight < concurrency).then_some((stage, self.in_flight))
    }
}
