//! One array.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rekindle_protocol::data::{Problem, ProblemKind};
use rekindle_protocol::exchange::{ArrayKind, Gpu, Put};

/// Where it lies.
pub(super) enum ArrayLocation {
    /// Memory that its giver may use again has a name.
    Gpu {
        gpu: Gpu,
        memory: OwnedFd,
        name: Option<String>,
    },
    Host {
        memory: OwnedFd,
    },
}

pub(super) struct Item {
    pub owner: String,
    pub bytes: u64,
    /// Of the GPU's memory.
    pub room: u64,
    pub location: ArrayLocation,
    /// How many have it mapped.
    pub holders: usize,
    /// Somebody copies it from one place to the other.
    pub moving: bool,
    /// When it was used last, and by which of all uses.
    pub since: Instant,
    pub order: u64,
    expiry: Duration,
    /// How many uses are left, if they are counted.
    uses: Option<u32>,
    /// It was dropped: nobody finds it any more.
    dropped: bool,
}

impl Item {
    pub(super) fn new(put: &Put, memory: OwnedFd, name: String, order: u64) -> Item {
        Item {
            owner: put.owner.clone(),
            bytes: put.bytes,
            room: put.room,
            location: ArrayLocation::Gpu { gpu: put.gpu.clone(), memory, name: Some(name) },
            holders: 0,
            moving: false,
            since: Instant::now(),
            order,
            expiry: Duration::from_millis(put.expiry_ms),
            uses: (put.uses != 0).then_some(put.uses),
            dropped: false,
        }
    }

    /// A copy of what another node has.
    pub(super) fn fetched(owner: &str, array: &ArrayKind, memory: OwnedFd, order: u64) -> Item {
        Item {
            owner: owner.to_string(),
            bytes: array.bytes,
            room: array.room,
            location: ArrayLocation::Host { memory },
            holders: 0,
            moving: false,
            since: Instant::now(),
            order,
            expiry: Duration::from_millis(array.expiry_ms),
            uses: None,
            dropped: false,
        }
    }

    /// What another node has to know of it.
    pub(super) fn kind(&self) -> ArrayKind {
        ArrayKind {
            bytes: self.bytes,
            room: self.room,
            expiry_ms: self.expiry.as_millis() as u64,
            counted: self.uses.is_some(),
        }
    }

    pub(super) fn is_on(&self, wanted: &str) -> bool {
        matches!(&self.location, ArrayLocation::Gpu { gpu, .. } if gpu.uuid == wanted)
    }

    pub(super) fn is_on_host(&self) -> bool {
        matches!(self.location, ArrayLocation::Host { .. })
    }

    /// Nobody has it mapped, and nobody moves it.
    pub(super) fn is_free(&self) -> bool {
        self.holders == 0 && !self.moving
    }

    pub(super) fn is_over(&self) -> bool {
        self.dropped && self.is_free()
    }

    /// How long it stays if nobody uses it; none while somebody does.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.is_free().then(|| (self.since + self.expiry).saturating_duration_since(now))
    }

    pub(super) fn let_go(&mut self, use_only: bool) {
        let left = self.uses.map(|uses| uses.saturating_sub(1)).filter(|_| use_only);
        self.uses = left.or(self.uses);
        self.dropped |= !use_only || left == Some(0);
    }
}

/// The array of this name, if its owner asks.
pub(super) fn find<'a>(
    items: &'a mut HashMap<String, Item>,
    owner: &str,
    id: &str,
) -> Result<&'a mut Item, Problem> {
    match items.get_mut(id).filter(|item| !item.dropped) {
        Some(item) if item.owner == owner => Ok(item),
        Some(_) => {
            let sentence = format!(
                "the array {id} belongs to another app or tenant than {owner}; hand arrays on within an app, or have both \
                 apps share one tenant's contexts"
            );
            Err(Problem::new(ProblemKind::Access, sentence))
        }
        None => Err(missing(id)),
    }
}

/// There is no array of this name.
pub(super) fn missing(id: &str) -> Problem {
    let sentence = format!(
        "the array {id} is not there: it was dropped, has expired, or was lost when the memory daemon ended; put it again, or \
         give it a longer expiry"
    );
    Problem::new(ProblemKind::NotFound, sentence)
}
