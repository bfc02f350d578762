//! Strided copies, fills, and operations on single values.

use serde::{Deserialize, Serialize};

/// A copy of `width` × `height` × `depth` (bytes × rows × slices) between linear memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy3D {
    pub to: u64,
    pub to_pitch: u64,
    /// Bytes from a slice to the next.
    pub to_slice: u64,
    pub from: u64,
    pub from_pitch: u64,
    pub from_slice: u64,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

impl Copy3D {
    /// One run of bytes.
    pub fn linear(to: u64, from: u64, bytes: u64) -> Copy3D {
        let (to_pitch, to_slice, from_pitch, from_slice) = (bytes, bytes, bytes, bytes);
        Copy3D { to, to_pitch, to_slice, from, from_pitch, from_slice, width: bytes, height: 1, depth: 1 }
    }
}

/// A fill of `height` rows of `width` elements of `element` (1, 2 or 4) bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySet {
    pub address: u64,
    /// Bytes from a row to the next; ignored where `height` is 1.
    pub pitch: u64,
    pub value: u32,
    pub element: u8,
    pub width: u64,
    pub height: u64,
}

/// One operation of a batch (`CUstreamBatchMemOpParams`); `width` is 4 or 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ValueOperation {
    Wait {
        address: u64,
        value: u64,
        width: u32,
        flags: u32,
    },
    Write {
        address: u64,
        value: u64,
        width: u32,
        flags: u32,
    },
    /// Writes of others to the GPU are there for what follows.
    Flush {
        flags: u32,
    },
    Barrier {
        flags: u32,
    },
}
