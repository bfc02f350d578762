//! Launch shapes and graph facts.

use serde::{Deserialize, Serialize};

/// The shape of a kernel launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    pub cooperative: bool,
    pub attributes: LaunchAttributes,
}

/// `CUlaunchAttribute` rows that carry no handles: (id, the 64-byte value).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchAttributes(pub Vec<(u32, Vec<u8>)>);

/// Whether a stream is being captured (`CUstreamCaptureStatus`), and the capture's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    pub status: u32,
    pub id: u64,
}

/// `CUgraphNodeType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphNodeKind(pub u32);
