//! How a graph was made, kept so that it can be made again on another device. Plain data.
//!
//! Streams and events stand here for their identity within one capture: they are named by numbers, and whatever makes
//! the graph again puts its own in their places.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{ArrayCopy, Copy3D, Launch, MemorySet, Result};
use rekindle_protocol::operation::{Id, NodeAction};
use serde::{Deserialize, Serialize};

/// What made a graph, in order. A capture can only be the first step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recipe {
    pub steps: Vec<GraphStep>,
}

impl Recipe {
    /// Whether conditions decide what it does.
    pub(crate) fn has_conditions(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, GraphStep::Conditional { .. }))
    }

    /// How many numbers its nodes have.
    pub(crate) fn nodes(&self) -> usize {
        let in_step = |step: &GraphStep| match step {
            GraphStep::Captured(recording) => recording.nodes(),
            _ => 1,
        };
        self.steps.iter().map(in_step).sum()
    }

    /// `CUgraphExecUpdateResult` for what stands in the way of this one becoming the other.
    pub(crate) fn difference(&self, other: &Recipe) -> u32 {
        const TOPOLOGY_CHANGED: u32 = 2;
        const KIND_CHANGED: u32 = 3;
        let (own, others) = (self.unfolded(), other.unfolded());
        if own.len() != others.len()
            || own.iter().zip(&*others).any(|(one, other)| one.before() != other.before())
        {
            return TOPOLOGY_CHANGED;
        }
        let of_both = |(one, other): (&GraphStep, &GraphStep)| match (one.enabled(), other.enabled()) {
            (GraphStep::Child { recipe, .. }, GraphStep::Child { recipe: other, .. }) => {
                recipe.difference(other)
            }
            (
                GraphStep::Conditional { kind, bodies, .. },
                GraphStep::Conditional { kind: other, bodies: others, .. },
            ) if kind == other && bodies.len() == others.len() => {
                let of_both = |(one, other): (&Recipe, &Recipe)| one.difference(other);
                bodies.iter().zip(others).map(of_both).find(|result| *result != 0).unwrap_or(0)
            }
            (GraphStep::Conditional { .. }, _) => KIND_CHANGED,
            (one, other) if one.action().kind() == other.action().kind() => 0,
            _ => KIND_CHANGED,
        };
        own.iter().zip(&*others).map(of_both).find(|result| *result != 0).unwrap_or(0)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum GraphStep {
    Captured(Recording),
    Kernel {
        after: Vec<u32>,
        function: Id,
        launch: Launch,
        #[serde(with = "serde_bytes")]
        parameters: Vec<u8>,
    },
    Copy {
        after: Vec<u32>,
        copy: Copy3D,
    },
    Set {
        after: Vec<u32>,
        set: MemorySet,
    },
    Empty {
        after: Vec<u32>,
    },
    Child {
        after: Vec<u32>,
        recipe: Recipe,
    },
    /// Any other node.
    Action {
        after: Vec<u32>,
        action: NodeAction,
    },
    /// It does nothing in this instance, and this in its graph.
    Disabled(Box<GraphStep>),
    /// It was taken out; no other one gets its number.
    Gone,
    /// The handle is the program's: whoever makes the graph again puts its own in its place.
    Conditional {
        after: Vec<u32>,
        handle: u64,
        default: Option<u32>,
        kind: u32,
        bodies: Vec<Recipe>,
    },
}

impl GraphStep {
    /// It does what the other step does, where it is. Both are of one kind.
    pub(crate) fn become_like(&mut self, mut other: GraphStep) -> Result<()> {
        if let GraphStep::Disabled(own) = self {
            return own.become_like(other);
        }
        let is_kind = self.action().kind() == other.action().kind();
        let is_settled = matches!(self, GraphStep::Gone | GraphStep::Conditional { .. }) || self.is_memory();
        if !is_kind || is_settled {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if let (Some(after), Some(place)) = (self.after(), other.after()) {
            *place = std::mem::take(after);
        }
        *self = other;
        Ok(())
    }

    /// The graph that it has in it, or that body of several.
    pub(crate) fn inside(&mut self, body: u32) -> Option<&mut Recipe> {
        match self {
            GraphStep::Child { recipe, .. } if body == 0 => Some(recipe),
            GraphStep::Conditional { bodies, .. } => bodies.get_mut(body as usize),
            _ => None,
        }
    }

    /// Whether it takes memory or gives it back: that is settled when the node is made.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(
            self,
            GraphStep::Action { action: NodeAction::Allocate { .. } | NodeAction::Free { .. }, .. }
        )
    }

    pub(crate) fn after(&mut self) -> Option<&mut Vec<u32>> {
        match self {
            GraphStep::Captured(_) | GraphStep::Gone => None,
            GraphStep::Disabled(step) => step.after(),
            GraphStep::Kernel { after, .. }
            | GraphStep::Copy { after, .. }
            | GraphStep::Set { after, .. }
            | GraphStep::Empty { after }
            | GraphStep::Child { after, .. }
            | GraphStep::Action { after, .. }
            | GraphStep::Conditional { after, .. } => Some(after),
        }
    }

    /// Numbers of the nodes that it comes after.
    pub(crate) fn before(&self) -> &[u32] {
        match self {
            GraphStep::Captured(_) | GraphStep::Gone => &[],
            GraphStep::Disabled(step) => step.before(),
            GraphStep::Kernel { after, .. }
            | GraphStep::Copy { after, .. }
            | GraphStep::Set { after, .. }
            | GraphStep::Empty { after }
            | GraphStep::Child { after, .. }
            | GraphStep::Action { after, .. }
            | GraphStep::Conditional { after, .. } => after,
        }
    }

    /// What it does where it is not disabled.
    pub(crate) fn enabled(&self) -> &GraphStep {
        if let GraphStep::Disabled(step) = self { step } else { self }
    }

    pub(crate) fn action(&self) -> NodeAction {
        match self {
            GraphStep::Kernel { function, launch, parameters, .. } => NodeAction::Kernel {
                function: *function,
                launch: launch.clone(),
                parameters: parameters.clone(),
            },
            GraphStep::Copy { copy, .. } => NodeAction::Copy(*copy),
            GraphStep::Set { set, .. } => NodeAction::Set(*set),
            GraphStep::Empty { .. } | GraphStep::Gone | GraphStep::Captured(_) => NodeAction::Empty,
            GraphStep::Child { .. } => NodeAction::Child,
            GraphStep::Action { action, .. } => action.clone(),
            GraphStep::Disabled(step) => step.action(),
            GraphStep::Conditional { handle, default, kind, bodies, .. } => NodeAction::Conditional {
                handle: *handle,
                default: *default,
                kind: *kind,
                bodies: bodies.len() as u32,
            },
        }
    }

    /// The step of a node that does this; none for one that has a graph in it.
    pub(crate) fn of(after: Vec<u32>, action: NodeAction) -> Option<GraphStep> {
        Some(match action {
            NodeAction::Kernel { function, launch, parameters } => {
                GraphStep::Kernel { after, function, launch, parameters }
            }
            NodeAction::Copy(copy) => GraphStep::Copy { after, copy },
            NodeAction::Set(set) => GraphStep::Set { after, set },
            NodeAction::Empty => GraphStep::Empty { after },
            NodeAction::Child => return None,
            NodeAction::Conditional { handle, default, kind, bodies } => {
                let bodies = (0..bodies).map(|_| Recipe::default()).collect();
                GraphStep::Conditional { after, handle, default, kind, bodies }
            }
            action => GraphStep::Action { after, action },
        })
    }
}

/// What a capture saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recording {
    /// The stream on which it began.
    pub origin: u64,
    pub mode: u32,
    pub streams: Vec<RecordedStream>,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedStream {
    pub stream: u64,
    pub flags: u32,
    pub priority: i32,
}

/// One operation on a stream under capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Step {
    Launch {
        stream: u64,
        function: Id,
        launch: Launch,
        #[serde(with = "serde_bytes")]
        parameters: Vec<u8>,
    },
    Copy {
        stream: u64,
        to: u64,
        from: u64,
        bytes: u64,
    },
    CopyStrided {
        stream: u64,
        copy: Copy3D,
    },
    Set {
        stream: u64,
        set: MemorySet,
    },
    WaitValue {
        stream: u64,
        address: u64,
        value: u64,
        width: u32,
        flags: u32,
    },
    WriteValue {
        stream: u64,
        address: u64,
        value: u64,
        width: u32,
        flags: u32,
    },
    HostCall {
        stream: u64,
        token: u64,
    },
    /// `id` matters only where the flags say that the event is not of the capture.
    Record {
        stream: u64,
        event: u64,
        id: Id,
        flags: u32,
    },
    Wait {
        stream: u64,
        event: u64,
        id: Id,
        flags: u32,
    },
    /// A launch of another graph becomes a child of this one.
    Graph {
        stream: u64,
        recipe: Recipe,
        flags: u64,
    },
    CopyArray {
        stream: u64,
        copy: ArrayCopy<Id>,
    },
    /// A node of which the device was not told.
    Node {
        stream: u64,
        action: NodeAction,
    },
    /// What the stream's next node comes after: these nodes too, or alone.
    Depend {
        stream: u64,
        after: Vec<u32>,
        alone: bool,
    },
    /// A node that was added to the graph of the capture, and is on no stream.
    Added {
        stream: u64,
        after: Vec<u32>,
        action: NodeAction,
    },
    /// The first step of a capture into a graph that has so many nodes; it begins after these.
    Into {
        stream: u64,
        nodes: u32,
        after: Vec<u32>,
    },
}
