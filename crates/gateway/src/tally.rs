//! What became of a service's requests, and how its instances came: counted since the daemon started.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use rekindle_protocol::daemon::Level;

use crate::policy::Refusal;
use crate::tenant::Denial;

/// Bounds of what is counted by how long it took, seconds: from an answer of a program that is there to a start from a slow disk.
pub const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Of one service.
#[derive(Debug)]
pub struct Tally {
    answers: [Counter; Class::ALL.len()],
    rejections: [Counter; Reason::ALL.len()],
    comings: [StartTally; Origin::ALL.len()],
    /// Requests that were sent to a further instance, for the first one did not answer.
    pub retries: Counter,
    /// How long requests waited for an instance.
    pub queued: Histogram,
    /// How long requests took that an instance had, until their answer was through.
    pub whole: Histogram,
}

/// Instances that came in one way.
#[derive(Debug)]
pub struct StartTally {
    /// How long those took that came.
    pub took: Histogram,
    pub failed: Counter,
}

/// What requests were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Informed,
    Succeeded,
    Redirected,
    Refused,
    Failed,
    /// The client had gone before.
    Unheard,
}

/// Why a request was sent to no instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    QueueFull,
    Timeout,
    NoInstance,
    Draining,
    NoToken,
    UnknownToken,
    ForeignToken,
    Rate,
}

/// What an instance came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Image,
    AsleepGpu,
    AsleepHost,
    AsleepDisk,
}

impl Class {
    pub const ALL: [Class; 6] =
        [Class::Informed, Class::Succeeded, Class::Redirected, Class::Refused, Class::Failed, Class::Unheard];

    fn of(status: Option<u16>) -> Class {
        match status {
            None => Class::Unheard,
            Some(..200) => Class::Informed,
            Some(200..300) => Class::Succeeded,
            Some(300..400) => Class::Redirected,
            Some(400..500) => Class::Refused,
            Some(500..) => Class::Failed,
        }
    }

    pub fn name(self) -> &'static str {
        ["1xx", "2xx", "3xx", "4xx", "5xx", "none"][self as usize]
    }
}

impl Reason {
    pub const ALL: [Reason; 8] = [
        Reason::QueueFull,
        Reason::Timeout,
        Reason::NoInstance,
        Reason::Draining,
        Reason::NoToken,
        Reason::UnknownToken,
        Reason::ForeignToken,
        Reason::Rate,
    ];

    pub fn name(self) -> &'static str {
        [
            "queue-full",
            "timeout",
            "no-instance",
            "draining",
            "no-token",
            "unknown-token",
            "foreign-token",
            "rate",
        ][self as usize]
    }
}

impl From<&Refusal> for Reason {
    fn from(refusal: &Refusal) -> Reason {
        match refusal {
            Refusal::Full => Reason::QueueFull,
            Refusal::TooLong { .. } => Reason::Timeout,
            Refusal::NoInstance { .. } => Reason::NoInstance,
            Refusal::Draining => Reason::Draining,
        }
    }
}

impl From<&Denial> for Reason {
    fn from(denial: &Denial) -> Reason {
        match denial {
            Denial::NoToken => Reason::NoToken,
            Denial::UnknownToken => Reason::UnknownToken,
            Denial::ForeignToken => Reason::ForeignToken,
            Denial::TooOften(_) => Reason::Rate,
        }
    }
}

impl Origin {
    pub const ALL: [Origin; 4] = [Origin::Image, Origin::AsleepGpu, Origin::AsleepHost, Origin::AsleepDisk];

    pub fn name(self) -> &'static str {
        ["image", "asleep-gpu", "asleep-host", "asleep-disk"][self as usize]
    }
}

impl From<Level> for Origin {
    fn from(level: Level) -> Origin {
        match level {
            Level::Gpu => Origin::AsleepGpu,
            Level::Host => Origin::AsleepHost,
            Level::Disk => Origin::AsleepDisk,
        }
    }
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            answers: Default::default(),
            rejections: Default::default(),
            comings: std::array::from_fn(|_| StartTally { took: durations(), failed: Counter::default() }),
            retries: Counter::default(),
            queued: durations(),
            whole: durations(),
        }
    }
}

impl Tally {
    pub(crate) fn answered(&self, status: Option<u16>) {
        self.answers[Class::of(status) as usize].inc();
    }

    pub(crate) fn rejected(&self, reason: Reason) {
        self.rejections[reason as usize].inc();
    }

    /// An instance came so, or did not.
    pub(crate) fn came(&self, from: Origin, took: Option<Duration>) {
        let coming = &self.comings[from as usize];
        match took {
            Some(took) => coming.took.observe(took.as_secs_f64()),
            None => {
                coming.failed.inc();
            }
        }
    }

    pub fn answers(&self) -> impl Iterator<Item = (Class, u64)> {
        Class::ALL.into_iter().zip(self.answers.iter().map(Counter::get))
    }

    pub fn rejections(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.rejections.iter().map(Counter::get))
    }

    pub fn comings(&self) -> impl Iterator<Item = (Origin, &StartTally)> {
        Origin::ALL.into_iter().zip(&self.comings)
    }
}

/// Counts by how long something took, seconds.
pub fn durations() -> Histogram {
    Histogram::new(BOUNDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_of_one_class() {
        let tally = Tally::default();
        for status in [Some(101), Some(200), Some(299), Some(304), Some(404), Some(429), Some(503), None] {
            tally.answered(status);
        }
        let counted: Vec<_> = tally.answers().map(|(class, count)| (class.name(), count)).collect();
        assert_eq!(counted, [("1xx", 1), ("2xx", 2), ("3xx", 1), ("4xx", 2), ("5xx", 1), ("none", 1)]);
    }

    #[test]
    fn names_stand_in_their_order() {
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
        }
        let tally = Tally::default();
        tally.rejected((&Refusal::Draining).into());
        tally.rejected((&Denial::TooOften(Duration::ZERO)).into());
        let counted: Vec<_> = tally.rejections().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(Reason::Draining, 1), (Reason::Rate, 1)]);
        assert_eq!((Reason::Draining.name(), Reason::Rate.name()), ("draining", "rate"));
        tally.came(Level::Disk.into(), None);
        let (origin, coming) = tally.comings().last().unwrap();
        assert_eq!((origin.name(), coming.failed.get()), ("asleep-disk", 1));
    }
}
