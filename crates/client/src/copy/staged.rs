//! Copies of graphs between the GPU and memory that the program alone has.
//!
//! ```text
//!   to the GPU:    client: program ─▶ staging │ GPU: staging ─▶ GPU memory
//!   from the GPU:  GPU: GPU memory ─▶ staging │ client: staging ─▶ program
//! ```
//! Each copy has staging of its own, pinned memory that both processes have at one address, for as long as a graph or an
//! instance has the copy. Both halves are in the graph: the bytes are read, or written, where the graph comes to the copy.

use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::Copy3D;
use rekindle_protocol::operation::NodeAction;

use crate::abi::Result;
use crate::capture;
use crate::graph::NodeResource;
use crate::host_call::{self, Function};
use crate::memory::{self, Purpose};
use crate::stream::{self, StreamTarget};

use super::Side;

struct Staging(u64);

impl Drop for Staging {
    fn drop(&mut self) {
        if let Ok(allocation) = memory::take(self.0, |a| matches!(a.purpose, Purpose::Pinned { .. })) {
            // A device that has failed has nothing pinned any more.
            let _ = memory::release(allocation);
        }
    }
}

/// What a node does for such a copy, and what it uses.
pub fn node(to: Side, from: Side, copy: Copy3D) -> Result<(NodeAction, NodeResource)> {
    if to.address() == 0 || from.address() == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let up = match (to, from) {
        (Side::Shared(_), Side::Pageable(_)) => true,
        (Side::Pageable(_), Side::Shared(_)) => false,
        _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
    };
    let Copy3D { width, height, depth, .. } = copy;
    let staging = memory::allocate(width * height * depth, Purpose::Pinned { flags: 0 })?;
    let kept = Staging(staging);
    let (pitch, slice) = (width, width * height);
    let into = Copy3D { to: staging, to_pitch: pitch, to_slice: slice, ..copy };
    let out = Copy3D { from: staging, from_pitch: pitch, from_slice: slice, ..copy };
    let (carried, copied) = if up { (into, out) } else { (out, into) };
    let call = host_call::keep(Function::Copy(carried));
    let action = NodeAction::Staged { copy: copied, token: call.token, up };
    Ok((action, Arc::new((call, kept))))
}

/// Puts such a copy into a capture; false where the stream is not captured, or it is another copy.
pub fn captured(target: StreamTarget, to: Side, from: Side, copy: Copy3D) -> Result<bool> {
    if !matches!((to, from), (Side::Shared(_), Side::Pageable(_)) | (Side::Pageable(_), Side::Shared(_))) {
        return Ok(false);
    }
    let capture = stream::capture(target)?;
    if capture.status == 0 {
        return Ok(false);
    }
    let (action, kept) = node(to, from, copy)?;
    capture::add(target, capture.id, action, Some(kept))?;
    Ok(true)
}
