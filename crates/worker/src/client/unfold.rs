//! Captured nodes as steps of their own: what a capture has seen says what comes after what.
//!
//! ```text
//!   capture:  launch on a │ record e on a │ wait for e on b │ copy on b │ wait for b's event on a │ …
//!   nodes:    0 kernel, 1 copy after 0, …
//! ```
//! A recipe keeps a capture as it was, so that the device makes the graph again as it did, until the program changes a
//! node, an edge, or adds one.

use std::borrow::Cow;
use std::collections::HashMap;

use rekindle_device::{Copy3D, Launch, LaunchAttributes, ValueOperation};
use rekindle_protocol::operation::{CaptureEnds, NodeAction};

use super::recipe::{GraphStep, Recipe, Recording, Step};

/// `CU_EVENT_RECORD_EXTERNAL`, `CU_EVENT_WAIT_EXTERNAL`.
const EXTERNAL: u32 = 1;
/// Launch attributes that say something of the stream, and mean nothing at a node.
const OF_STREAMS: [u32; 3] = [0, 3, 6];

#[derive(Default)]
struct Unfolding {
    steps: Vec<GraphStep>,
    /// The number of the first step's node.
    first: u32,
    /// What the next node of each stream comes after.
    ends: HashMap<u64, Vec<u32>>,
    /// What whoever waits for an event comes after.
    events: HashMap<u64, Vec<u32>>,
}

impl Unfolding {
    fn node(&mut self, stream: u64, make: impl FnOnce(Vec<u32>) -> GraphStep) {
        let number = self.first + self.steps.len() as u32;
        let after = self.ends.insert(stream, vec![number]).unwrap_or_default();
        self.steps.push(make(after));
    }

    fn action(&mut self, stream: u64, action: NodeAction) {
        self.node(stream, |after| GraphStep::Action { after, action });
    }

    fn depend(&mut self, stream: u64, after: &[u32], alone: bool) {
        let ends = self.ends.entry(stream).or_default();
        if alone {
            ends.clear();
        }
        ends.extend(after);
        ends.sort_unstable();
        ends.dedup();
    }

    fn step(&mut self, step: &Step) {
        let stream = step.stream();
        match step {
            Step::Launch { function, launch, parameters, .. } => {
                let (function, launch, parameters) = (*function, at_node(launch), parameters.clone());
                self.node(stream, |after| GraphStep::Kernel { after, function, launch, parameters });
            }
            Step::Copy { to, from, bytes, .. } => {
                let copy = Copy3D::linear(*to, *from, *bytes);
                self.node(stream, |after| GraphStep::Copy { after, copy });
            }
            Step::CopyStrided { copy, .. } => {
                let copy = *copy;
                self.node(stream, |after| GraphStep::Copy { after, copy });
            }
            Step::Set { set, .. } => {
                let set = *set;
                self.node(stream, |after| GraphStep::Set { after, set });
            }
            Step::WaitValue { address, value, width, flags, .. } => {
                let (address, value, width, flags) = (*address, *value, *width, *flags);
                let wait = ValueOperation::Wait { address, value, width, flags };
                self.action(stream, NodeAction::Values(vec![wait]));
            }
            Step::WriteValue { address, value, width, flags, .. } => {
                let (address, value, width, flags) = (*address, *value, *width, *flags);
                let write = ValueOperation::Write { address, value, width, flags };
                self.action(stream, NodeAction::Values(vec![write]));
            }
            Step::CopyArray { copy, .. } => self.action(stream, NodeAction::CopyArray(*copy)),
            Step::HostCall { token, .. } => self.action(stream, NodeAction::Call { token: *token }),
            Step::Record { id, flags, .. } if flags & EXTERNAL != 0 => {
                self.action(stream, NodeAction::Record { event: *id });
            }
            Step::Record { event, .. } => {
                let ends = self.ends.get(&stream).cloned().unwrap_or_default();
                self.events.insert(*event, ends);
            }
            Step::Wait { id, flags, .. } if flags & EXTERNAL != 0 => {
                self.action(stream, NodeAction::Wait { event: *id });
            }
            Step::Wait { event, .. } => {
                let before = self.events.get(event).cloned().unwrap_or_default();
                self.depend(stream, &before, false);
            }
            Step::Graph { recipe, .. } => {
                let recipe = recipe.clone();
                self.node(stream, |after| GraphStep::Child { after, recipe });
            }
            Step::Node { action, .. } => self.action(stream, action.clone()),
            // What is in it comes when the capture has ended.
            Step::Added { after, action: NodeAction::Child, .. } => {
                self.steps.push(GraphStep::Child { after: after.clone(), recipe: Recipe::default() });
            }
            Step::Added { after, action, .. } => {
                self.steps.extend(GraphStep::of(after.clone(), action.clone()));
            }
            Step::Depend { after, alone, .. } => self.depend(stream, after, *alone),
            Step::Into { nodes, after, .. } => {
                self.first = *nodes;
                self.ends.insert(stream, after.clone());
            }
        }
    }
}

/// A launch without what only streams know.
fn at_node(launch: &Launch) -> Launch {
    let attributes = launch.attributes.0.iter().filter(|(id, _)| !OF_STREAMS.contains(id)).cloned().collect();
    Launch { attributes: LaunchAttributes(attributes), ..launch.clone() }
}

impl Recording {
    fn unfolding(&self) -> Unfolding {
        let mut unfolding = Unfolding::default();
        self.steps.iter().for_each(|step| unfolding.step(step));
        unfolding
    }

    /// Its nodes, in the order in which they were captured.
    pub(crate) fn unfold(&self) -> Vec<GraphStep> {
        self.unfolding().steps
    }

    pub(crate) fn nodes(&self) -> usize {
        let is_node = |step: &&Step| match step {
            Step::Record { flags, .. } | Step::Wait { flags, .. } => flags & EXTERNAL != 0,
            Step::Depend { .. } | Step::Into { .. } => false,
            _ => true,
        };
        self.steps.iter().filter(is_node).count()
    }

    /// The number of the next node.
    pub(crate) fn next_number(&self) -> u32 {
        let before = match self.steps.first() {
            Some(Step::Into { nodes, .. }) => *nodes,
            _ => 0,
        };
        before + self.nodes() as u32
    }

    /// Whether the device's graph is what was captured: it was told of every node, and of all that they come after.
    pub(crate) fn is_the_device_s(&self) -> bool {
        self.steps.iter().all(|step| match step {
            Step::Node { .. } | Step::Added { .. } | Step::Depend { .. } => false,
            Step::Into { nodes, .. } => *nodes == 0,
            _ => true,
        })
    }

    /// How far it has come on a stream; kinds of nodes with a lower number than `from` are left out.
    pub(crate) fn ends(&self, stream: u64, from: u32) -> CaptureEnds {
        let unfolding = self.unfolding();
        let skip = from.saturating_sub(unfolding.first) as usize;
        let kinds = unfolding.steps.iter().skip(skip).map(|step| step.action().kind()).collect();
        CaptureEnds { kinds, after: unfolding.ends.get(&stream).cloned().unwrap_or_default() }
    }
}

impl Recipe {
    /// Its steps, each of them a node.
    pub(crate) fn unfolded(&self) -> Cow<'_, [GraphStep]> {
        match self.steps.split_first() {
            Some((GraphStep::Captured(recording), rest)) => {
                let mut steps = recording.unfold();
                steps.extend_from_slice(rest);
                Cow::Owned(steps)
            }
            _ => Cow::Borrowed(&self.steps),
        }
    }

    /// Has each of its steps be a node; true if some were not.
    pub(crate) fn unfold(&mut self) -> bool {
        let Cow::Owned(steps) = self.unfolded() else { return false };
        self.steps = steps;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(steps: Vec<Step>) -> Recording {
        Recording { origin: 1, mode: 0, streams: Vec::new(), steps }
    }

    fn copy(stream: u64) -> Step {
        Step::Copy { stream, to: 0x100, from: 0x200, bytes: 16 }
    }

    fn order(recording: &Recording) -> Vec<Vec<u32>> {
        recording.unfold().iter().map(|step| step.before().to_vec()).collect()
    }

    #[test]
    fn a_fork_and_a_join_are_edges() {
        let recording = recording(vec![
            copy(1),
            Step::Record { stream: 1, event: 7, id: 0, flags: 0 },
            Step::Wait { stream: 2, event: 7, id: 0, flags: 0 },
            copy(2),
            copy(1),
            Step::Record { stream: 2, event: 8, id: 1, flags: 0 },
            Step::Wait { stream: 1, event: 8, id: 1, flags: 0 },
            Step::Record { stream: 1, event: 9, id: 2, flags: EXTERNAL },
        ]);
        assert_eq!(order(&recording), [vec![], vec![0], vec![0], vec![1, 2]]);
        assert_eq!((recording.nodes(), recording.is_the_device_s()), (4, true));
        assert_eq!(recording.ends(1, 3), CaptureEnds { kinds: vec![7], after: vec![3] });
        assert_eq!(recording.ends(2, 4), CaptureEnds { kinds: vec![], after: vec![1] });
    }

    #[test]
    fn what_follows_can_be_told() {
        let recording = recording(vec![
            Step::Into { stream: 1, nodes: 5, after: vec![2, 4] },
            copy(1),
            copy(1),
            Step::Depend { stream: 1, after: vec![5], alone: true },
            Step::Node { stream: 1, action: NodeAction::Call { token: 3 } },
        ]);
        assert_eq!(order(&recording), [vec![2, 4], vec![5], vec![5]]);
        assert!(!recording.is_the_device_s());
    }
}
