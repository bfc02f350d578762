//! What nodes of graphs do.

use rekindle_device::{ArrayCopy, Copy3D, Launch, MemorySet, ValueOperation};
use serde::{Deserialize, Serialize};

use super::Id;

/// What a node does. Images hold these too: further ones come last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeAction {
    Kernel {
        function: Id,
        launch: Launch,
        #[serde(with = "serde_bytes")]
        parameters: Vec<u8>,
    },
    Copy(Copy3D),
    Set(MemorySet),
    Empty,
    /// Another graph is in it.
    Child,
    /// The client calls the function with this token, at each launch.
    Call {
        token: u64,
    },
    Record {
        event: Id,
    },
    Wait {
        event: Id,
    },
    Values(Vec<ValueOperation>),
    /// The memory is there from before the node was made. What it has to do with launches is the client's.
    Allocate {
        address: u64,
        bytes: u64,
    },
    Free {
        address: u64,
    },
    /// A copy between the GPU and memory that the program alone has: the client carries the bytes to memory that both
    /// have before it (`up`), or from there after it, as the function with this token.
    Staged {
        copy: Copy3D,
        token: u64,
        up: bool,
    },
    /// Does what a value says that kernels set; `kind` is `CUgraphConditionalNodeType`, `default` what launches begin with. The
    /// handle is the client's: the worker puts the device's in its place among parameters of kernels.
    Conditional {
        handle: u64,
        default: Option<u32>,
        kind: u32,
        bodies: u32,
    },
    /// A copy from or to an array.
    CopyArray(ArrayCopy<Id>),
}

impl NodeAction {
    /// `CUgraphNodeType`.
    pub fn kind(&self) -> u32 {
        match self {
            NodeAction::Kernel { .. } => 0,
            NodeAction::Copy(_) | NodeAction::Staged { .. } | NodeAction::CopyArray(_) => 1,
            NodeAction::Set(_) => 2,
            NodeAction::Call { .. } => 3,
            NodeAction::Child => 4,
            NodeAction::Empty => 5,
            NodeAction::Wait { .. } => 6,
            NodeAction::Record { .. } => 7,
            NodeAction::Allocate { .. } => 10,
            NodeAction::Free { .. } => 11,
            NodeAction::Values(_) => 12,
            NodeAction::Conditional { .. } => 13,
        }
    }
}

/// A node of a graph; none where one was taken out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeFound {
    /// `CUgraphNodeType`.
    pub kind: u32,
    /// Numbers of the nodes that it comes after.
    pub after: Vec<u32>,
}

/// How far a capture has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureEnds {
    /// Kinds of the nodes that it has made so far, but for those that were asked for to be left out.
    pub kinds: Vec<u32>,
    /// What the stream's next node comes after.
    pub after: Vec<u32>,
}
