//! How a graph was made, kept so that it can be made again on another device. Plain data.
//!
//! Streams and events stand here for their identity within one capture: they are named by numbers, and whatever makes
//! the graph again puts its own in their places.

use rekindle_device::{Copy3D, Launch, MemorySet};
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
}
