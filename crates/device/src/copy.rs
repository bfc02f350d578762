//! Strided copies and fills.

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
