//! What a user asks for of a service.

use std::time::Duration;

use rekindle_protocol::daemon::{Level, Limits};
use rekindle_protocol::data_slot::DataSlot;
use rekindle_protocol::service::SleepStage;
use serde::{Deserialize, Serialize};

use crate::memory::{Datum, Holding};

/// How many instances a service has, and what they take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// So many stay awake, whether there are requests or not.
    pub min: u32,
    pub max: u32,
    /// How many requests an instance has at once.
    pub concurrency: u32,
    /// How long an instance without a request keeps its GPU half awake.
    pub idle_ms: u64,
    /// How long one sleeps before it ends, at its only level.
    pub idle_end_ms: u64,
    /// The levels that it sleeps at instead, one after the other, the highest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<SleepStage>,
    /// How long a context is kept for one that sleeps, from when it fell asleep on, whatever its level is by then.
    #[serde(default, skip_serializing_if = "is_none")]
    pub context_ms: u64,
    /// How many requests may wait.
    pub queue: u32,
    /// How long a request may wait, and an instance take until it listens.
    pub timeout_ms: u64,
}

fn is_none(ms: &u64) -> bool {
    *ms == 0
}

/// What of a plan cannot be.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("a service has at most 0 instances by this; say at least --max 1")]
    NoInstances,
    #[error(
        "a service cannot have at least {min} and at most {max} instances; give a --min that is not above --max"
    )]
    Bounds { min: u32, max: u32 },
    #[error("an instance would have 0 requests at once; say at least --concurrency 1")]
    NoConcurrency,
    #[error("no request could wait; say a --timeout above 0")]
    NoTimeout,
    #[error(
        "instances cannot sleep at the levels of --stages in this order; say each once, of gpu, host and disk"
    )]
    StageOrder,
}

impl Plan {
    pub fn check(&self) -> Result<(), PlanError> {
        let Plan { min, max, concurrency, timeout_ms, .. } = *self;
        match () {
            () if max == 0 => Err(PlanError::NoInstances),
            () if min > max => Err(PlanError::Bounds { min, max }),
            () if concurrency == 0 => Err(PlanError::NoConcurrency),
            () if timeout_ms == 0 => Err(PlanError::NoTimeout),
            () if !self.stages.is_sorted_by(|one, next| one.level < next.level) => Err(PlanError::StageOrder),
            () => Ok(()),
        }
    }

    pub(crate) fn idle(&self) -> Duration {
        Duration::from_millis(self.idle_ms)
    }

    pub(crate) fn context(&self) -> Duration {
        Duration::from_millis(self.context_ms)
    }

    /// The levels that an instance sleeps at, the highest first; `level` is that of one that sleeps at one alone.
    pub(crate) fn sleeps(&self, level: Level) -> Vec<SleepStage> {
        match self.stages.is_empty() {
            true => vec![SleepStage { level, ms: self.idle_end_ms }],
            false => self.stages.clone(),
        }
    }

    /// What is left of them for one that sleeps at a level: that one first.
    pub(crate) fn sleeps_on(&self, level: Level, only: Level) -> Vec<SleepStage> {
        let mut stages = self.sleeps(only);
        let last = stages.len() - 1;
        let at = stages.iter().position(|stage| stage.level >= level).unwrap_or(last);
        stages.split_off(at)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// What instances are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub image: String,
    /// Tells images of one name, one after the other, apart.
    pub id: String,
    /// Further images of the same program, each with addresses of its own: instances of different ones fit in one GPU
    /// context.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
    /// The port that the program listens on.
    pub to: u16,
    /// What an instance answers with success once it is ready, such as `/healthz`; none: that it listens is enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// The GPU; the image's if none is given. Of several, an instance's own, or the first.
    pub gpu: Option<String>,
    /// Where there are several: each instance is on one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Place>,
    /// Whose programs instances share GPU contexts with; none: nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What an instance has of those, as far as it is not as the image has it.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// Where the GPU memory of an idle instance goes.
    pub level: Level,
    /// URLs of the data that instances are about to want.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<String>,
    /// Their names for requests, and what those may have instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_slots: Vec<DataSlot>,
    /// The latest version of calls' messages that the program understands, if it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<u32>,
    /// The GPU memory that an instance takes.
    #[serde(default)]
    pub need: MemoryNeed,
}

/// One of several GPUs that instances may be on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// As [`Source::gpu`].
    pub gpu: String,
    /// As [`MemoryNeed::gpu`].
    pub counted: String,
}

/// One of several images that instances are made of alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    pub image: String,
    pub id: String,
}

impl MemoryNeed {
    /// Bytes of the program and its data, if no other has that.
    pub fn alone(&self) -> u64 {
        Holding { own: self.program, data: self.data.clone() }.alone()
    }
}

impl Source {
    /// Every image of it.
    pub fn images(&self) -> impl Iterator<Item = Variant> {
        let first = Variant { image: self.image.clone(), id: self.id.clone() };
        std::iter::once(first).chain(self.variants.iter().cloned())
    }

    /// Whether instances of both are the same, whatever is known of the memory that they need.
    pub fn makes_the_same(&self, other: &Source) -> bool {
        // Of several GPUs each instance has one.
        let gpu = if self.gpus.is_empty() { &other.gpu } else { &self.gpu };
        *self == Source { need: self.need.clone(), gpu: gpu.clone(), ..other.clone() }
    }

    /// What an instance on this one of its GPUs is made of; none if it is not one of several.
    pub fn on(&self, counted: &str) -> Option<Source> {
        let place = self.gpus.iter().find(|place| place.counted == counted)?;
        let need = MemoryNeed { gpu: place.counted.clone(), ..self.need.clone() };
        Some(Source { gpu: Some(place.gpu.clone()), need, ..self.clone() })
    }
}

/// What is known beforehand of the GPU memory that an instance takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNeed {
    /// The GPU that has it; the first of several.
    pub gpu: String,
    /// Bytes of the program's own, as the image has them.
    pub program: u64,
    /// Declared data that it has, or is about to want, and may have with others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<Datum>,
    /// Bytes of the context that the instance does not share with others.
    pub context: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(all: &[(Level, u64)]) -> Vec<SleepStage> {
        all.iter().map(|(level, ms)| SleepStage { level: *level, ms: *ms }).collect()
    }

    #[test]
    fn who_sleeps_at_one_level_alone_has_that_and_its_time() {
        let plan = Plan { idle_end_ms: 7, ..Plan::default() };
        for level in [Level::Gpu, Level::Host, Level::Disk] {
            assert_eq!(plan.sleeps_on(level, Level::Host), stages(&[(Level::Host, 7)]));
        }
        let plan = Plan { stages: stages(&[(Level::Gpu, 1), (Level::Disk, 3)]), ..plan };
        assert_eq!(plan.sleeps_on(Level::Gpu, Level::Host), plan.stages);
        assert_eq!(plan.sleeps_on(Level::Host, Level::Host), plan.stages[1..]);
        assert_eq!(plan.sleeps_on(Level::Disk, Level::Host), plan.stages[1..]);
    }

    #[test]
    fn plans_of_before_have_no_stages() {
        let text =
            r#"{"min":0,"max":4,"concurrency":8,"idle_ms":1,"idle_end_ms":2,"queue":3,"timeout_ms":4}"#;
        let plan: Plan = serde_json::from_str(text).unwrap();
        assert_eq!(plan.sleeps(Level::Disk), stages(&[(Level::Disk, 2)]));
        assert_eq!(serde_json::to_string(&plan).unwrap(), text);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let plan = Plan { max: 4, concurrency: 8, timeout_ms: 1, ..Plan::default() };
        assert!(plan.check().is_ok());
        for (wrong, word) in [
            (Plan { max: 0, ..plan.clone() }, "--max"),
            (Plan { min: 5, ..plan.clone() }, "--min"),
            (Plan { concurrency: 0, ..plan.clone() }, "--concurrency"),
            (Plan { timeout_ms: 0, ..plan.clone() }, "--timeout"),
            (Plan { stages: stages(&[(Level::Host, 1), (Level::Gpu, 1)]), ..plan.clone() }, "--stages"),
            (Plan { stages: stages(&[(Level::Host, 1), (Level::Host, 1)]), ..plan.clone() }, "--stages"),
        ] {
            assert!(wrong.check().unwrap_err().to_string().contains(word));
        }
    }
}
