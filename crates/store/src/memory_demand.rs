//! How much GPU memory requests of an image's program need in their course: a file beside the manifest, for it is learned after
//! the image was made. It is advice: without it a restored program's first uses of memory take longer.

use serde::{Deserialize, Serialize};

use crate::advice::{self, MEMORY_DEMAND};
use crate::error::Result;
use crate::image::Image;

/// So many requests that differ are kept of a GPU: those that were seen last.
const KINDS: usize = 8;

/// Memory comes to a request, or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u32, i64)", into = "(u32, u32, i64)")]
pub struct MemoryChange {
    /// Launches of the request up to then, the one that it was for included.
    pub launch: u32,
    /// Microseconds since the request began, by when the worker came to it.
    pub micros: u32,
    /// Bytes of a first use, or less than 0 of what was freed.
    pub bytes: i64,
}

impl From<(u32, u32, i64)> for MemoryChange {
    fn from((launch, micros, bytes): (u32, u32, i64)) -> MemoryChange {
        MemoryChange { launch, micros, bytes }
    }
}

impl From<MemoryChange> for (u32, u32, i64) {
    fn from(MemoryChange { launch, micros, bytes }: MemoryChange) -> (u32, u32, i64) {
        (launch, micros, bytes)
    }
}

/// One request, from the first work after a rest to the next rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestMemory {
    /// All launches of the request.
    pub launches: u32,
    pub changes: Vec<MemoryChange>,
}

/// The requests of a program on one GPU, as far as they differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestKinds(pub Vec<RequestMemory>);

/// What is kept with an image: of each GPU of the program, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDemand {
    pub gpus: Vec<RequestKinds>,
}

impl RequestMemory {
    /// Whether the same launches had memory come and go.
    fn is_like(&self, other: &RequestMemory) -> bool {
        let same =
            |one: &MemoryChange, two: &MemoryChange| (one.launch, one.bytes) == (two.launch, two.bytes);
        self.launches == other.launches
            && self.changes.len() == other.changes.len()
            && self.changes.iter().zip(&other.changes).all(|(one, two)| same(one, two))
    }

    /// The most bytes that the request has at once beyond what was there when it began.
    pub fn peak(&self) -> u64 {
        let levels = self.changes.iter().scan(0i64, |level, change| {
            *level += change.bytes;
            Some(*level)
        });
        levels.max().and_then(|most| u64::try_from(most).ok()).unwrap_or(0)
    }
}

impl RequestKinds {
    /// Adds one. Says whether it is of a kind that was not known.
    pub fn learn(&mut self, request: RequestMemory) -> bool {
        let known = self.0.iter().position(|one| one.is_like(&request));
        if let Some(known) = known {
            self.0.remove(known);
        } else if self.0.len() == KINDS {
            self.0.remove(0);
        }
        self.0.push(request);
        known.is_none()
    }
}

impl Image {
    /// What is known of the requests of the image's program; empty if nothing is.
    pub fn memory_demand(&self) -> Result<MemoryDemand> {
        Ok(advice::read(self, MEMORY_DEMAND)?.unwrap_or_default())
    }

    /// Adds what a restored program has seen. Says whether there was something new in it.
    pub fn learn_memory_demand(&self, seen: MemoryDemand) -> Result<bool> {
        let _turn = advice::lock(self)?;
        // One that is damaged is as good as none.
        let mut demand = self.memory_demand().unwrap_or_default();
        demand.gpus.resize(demand.gpus.len().max(seen.gpus.len()), RequestKinds::default());
        let mut is_new = false;
        for (known, seen) in demand.gpus.iter_mut().zip(seen.gpus) {
            for request in seen.0 {
                is_new |= known.learn(request);
            }
        }
        if is_new {
            advice::write(self, MEMORY_DEMAND, &demand)?;
        }
        Ok(is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(changes: &[(u32, u32, i64)]) -> RequestMemory {
        RequestMemory { launches: 10, changes: changes.iter().map(|change| (*change).into()).collect() }
    }

    #[test]
    fn only_kinds_that_differ_are_kept_and_no_more_than_a_few() {
        let mut kinds = RequestKinds::default();
        assert!(kinds.learn(request(&[(1, 10, 5)])) && !kinds.learn(request(&[(1, 90, 5)])));
        assert_eq!(kinds.0, [request(&[(1, 90, 5)])]);
        for bytes in 0..20 {
            kinds.learn(request(&[(1, 1, bytes)]));
        }
        assert_eq!(kinds.0.len(), KINDS);
        assert_eq!(kinds.0[0].changes[0].bytes, 12);
    }

    #[test]
    fn the_peak_is_what_is_there_at_once() {
        assert_eq!(request(&[(1, 0, 5), (2, 0, 7), (3, 0, -5), (4, 0, 4)]).peak(), 12);
        assert_eq!(request(&[(1, 0, -5)]).peak(), 0);
        let text = serde_json::to_string(&request(&[(1, 2, -3)])).unwrap();
        assert_eq!(text, r#"{"launches":10,"changes":[[1,2,-3]]}"#);
    }
}
