//! What the modules and streams of an image depend on, step by step, as hashes: two images with the same course so far
//! come out alike in one worker so far.
//!
//! The first has what was there before the first step: GPUs, limits, where memory and the driver's heaps lie. Each further
//! one has the step too: which module was loaded, with its code, its globals and their addresses; which kernel was looked
//! up, and what was set for it; which stream was made. Contents are in none of them.

use serde::Serialize;

use super::error::{Error, Result};
use super::replay::{Moment, moments};
use super::state::State;

#[derive(Debug, PartialEq)]
pub(super) struct Course {
    hashes: Vec<blake3::Hash>,
    steps: usize,
}

impl Course {
    pub fn of(state: &State) -> Result<Course> {
        let devices: Vec<_> = state
            .devices
            .iter()
            .map(|row| {
                let context = row.context.as_ref().map(|context| (&context.regions, &context.limits));
                (row.kind, &row.model, context)
            })
            .collect();
        let mut hashes = vec![next(None, &(devices, &state.placements))?];
        for (at, moment) in moments(state) {
            let last = hashes.last();
            let hash = match moment {
                Moment::Load(n) => next(last, &(at, 0u8, &state.modules[n])),
                Moment::Unload(n) => next(last, &(at, 1u8, state.modules[n].loaded_at)),
                Moment::Function(row) | Moment::Piece(row) => next(last, &(at, 2u8, row)),
                Moment::Global(n, given) => next(last, &(at, 3u8, state.modules[n].loaded_at, given)),
                Moment::Stream(row) => next(last, &(at, 4u8, row)),
                Moment::OwnStream(thread, device) => next(last, &(at, 5u8, thread, device)),
            }?;
            hashes.push(hash);
        }
        let steps = hashes.len() - 1;
        // Streams that were destroyed are so behind the last step, and a further one would take their room.
        if state.streams.iter().any(|stream| stream.id.is_none()) {
            hashes.push(next(hashes.last(), &"end")?);
        }
        Ok(Course { hashes, steps })
    }

    /// How many steps it has.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether it goes as the other one does for as long as that goes.
    pub fn begins_with(&self, other: &Course) -> bool {
        self.hashes.starts_with(&other.hashes)
    }

    /// Enough of each hash for whoever chooses between images.
    pub fn marks(&self) -> Vec<u64> {
        let mark = |hash: &blake3::Hash| {
            let bytes = hash.as_bytes();
            u64::from_le_bytes(std::array::from_fn(|at| bytes[at]))
        };
        self.hashes.iter().map(mark).collect()
    }
}

fn next(last: Option<&blake3::Hash>, step: &impl Serialize) -> Result<blake3::Hash> {
    let before = last.map_or(Vec::new(), |hash| hash.as_bytes().to_vec());
    let bytes = postcard::to_extend(step, before).map_err(|error| Error::State(error.to_string()))?;
    Ok(blake3::hash(&bytes))
}

#[cfg(test)]
mod tests {
    use rekindle_device::GpuKind;

    use super::super::state::{ContextState, DeviceState, StreamState};
    use super::*;

    /// A stream of id 0 was destroyed.
    fn state(streams: &[(u32, u64)], regions: Vec<(u64, u64)>) -> State {
        let stream = |(id, at): &(u32, u64)| StreamState {
            id: Some(*id).filter(|id| *id != 0),
            device: 0,
            flags: 0,
            priority: 0,
            at: *at,
        };
        State {
            devices: vec![DeviceState {
                kind: GpuKind::Emulated,
                model: "m".to_string(),
                context: Some(ContextState { regions, clock: 2.0, ..ContextState::default() }),
            }],
            streams: streams.iter().map(stream).collect(),
            ..State::default()
        }
    }

    #[test]
    fn a_course_goes_as_another_until_a_step_differs() {
        let course = |streams: &[(u32, u64)]| Course::of(&state(streams, vec![(1, 2)])).unwrap();
        let (short, long) = (course(&[(1, 1), (2, 2)]), course(&[(3, 3), (1, 1), (2, 2)]));
        assert_eq!((short.steps(), long.steps()), (2, 3));
        assert!(long.begins_with(&short) && !short.begins_with(&long));
        assert_eq!(long.marks()[..3], short.marks()[..]);
        assert!(!course(&[(1, 1), (4, 2), (3, 3)]).begins_with(&short));
        // Nothing goes on behind what was destroyed.
        let destroyed = [(1, 1), (0, 2)];
        assert!(course(&destroyed).begins_with(&course(&destroyed)));
        assert!(!course(&[(1, 1), (0, 2), (3, 3)]).begins_with(&course(&destroyed)));
        assert!(!Course::of(&state(&[(1, 1), (2, 2)], Vec::new())).unwrap().begins_with(&short));
    }
}
