//! How a graph was made, kept so that it can be made again on another device. Plain data.
//!
//! Streams and events stand here for their identity within one capture: they are named by numbers, and whatever makes
//! the graph again puts its own in their places.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{ArrayCopy, Copy3D, Launch, MemorySet, Result};
use rekindle_protocol::operation::Id;
use serde::{Deserialize, Serialize};

/// What made a graph, in order. A capture can only be the first step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recipe {
    pub steps: Vec<GraphStep>,
}

impl Recipe {
    /// Whether it has copies, fills or other work that a device checks the addresses of when it is added.
    pub(crate) fn copies(&self) -> bool {
        self.steps.iter().any(|step| match step {
            GraphStep::Captured(recording) => recording.steps.iter().any(|step| match step {
                Step::Launch { .. } | Step::Record { .. } | Step::Wait { .. } => false,
                Step::Graph { recipe, .. } => recipe.copies(),
                _ => true,
            }),
            GraphStep::Kernel { .. } | GraphStep::Empty { .. } => false,
            GraphStep::Copy { .. } | GraphStep::Set { .. } => true,
            GraphStep::Child { recipe, .. } => recipe.copies(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum GraphStep {
    Captured(Recording),
    Kernel { after: Vec<u32>, function: Id, launch: Launch, parameters: Vec<u8> },
    Copy { after: Vec<u32>, copy: Copy3D },
    Set { after: Vec<u32>, set: MemorySet },
    Empty { after: Vec<u32> },
    Child { after: Vec<u32>, recipe: Recipe },
}

impl GraphStep {
    /// It does what the other step does, where it is. Both are of one kind.
    pub(crate) fn become_like(&mut self, mut other: GraphStep) -> Result<()> {
        if std::mem::discriminant(self) != std::mem::discriminant(&other) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if let (Some(after), Some(place)) = (self.after(), other.after()) {
            *place = std::mem::take(after);
        }
        *self = other;
        Ok(())
    }

    fn after(&mut self) -> Option<&mut Vec<u32>> {
        match self {
            GraphStep::Captured(_) => None,
            GraphStep::Kernel { after, .. }
            | GraphStep::Copy { after, .. }
            | GraphStep::Set { after, .. }
            | GraphStep::Empty { after }
            | GraphStep::Child { after, .. } => Some(after),
        }
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
}
