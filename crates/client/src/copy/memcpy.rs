//! The linear copies that the driver exports.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;

use crate::abi::{Handle, In, Out, Result};
use crate::context;
use crate::export::exports;
use crate::stream::enter;

use super::Side;
use super::linear::{When, copy};

fn up(stream: Handle, to: u64, from: u64, bytes: usize, when: When) -> Result<()> {
    copy(enter(stream)?, Side::Shared(to), Side::host(from, bytes as u64), bytes as u64, when)
}

fn down(stream: Handle, to: u64, from: u64, bytes: usize, when: When) -> Result<()> {
    copy(enter(stream)?, Side::host(to, bytes as u64), Side::Shared(from), bytes as u64, when)
}

fn across(stream: Handle, to: u64, from: u64, bytes: usize, when: When) -> Result<()> {
    copy(enter(stream)?, Side::Shared(to), Side::Shared(from), bytes as u64, when)
}

fn any(stream: Handle, to: u64, from: u64, bytes: usize, when: When) -> Result<()> {
    let length = bytes as u64;
    copy(enter(stream)?, Side::unified(to, length), Side::unified(from, length), length, when)
}

fn peer(stream: Handle, to: (u64, Handle), from: (u64, Handle), bytes: usize, when: When) -> Result<()> {
    context::find(to.1)?;
    context::find(from.1)?;
    across(stream, to.0, from.0, bytes, when)
}

/// The arrays of a batch: destinations, sources, sizes.
type Batch = (In<u64>, In<u64>, In<usize>);

fn batch(stream: Handle, (to, from, sizes): Batch, count: usize, failed: Option<Out<usize>>) -> Result<()> {
    if count == 0 || stream.0 <= 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (to, from, sizes) = (to.slice(count)?, from.slice(count)?, sizes.slice(count)?);
    for index in 0..count {
        any(stream, to[index], from[index], sizes[index], When::Enqueued).inspect_err(|_| {
            if let Some(failed) = failed {
                failed.offer(index);
            }
        })?;
    }
    Ok(())
}

exports! {
    call fn cuMemcpy | cuMemcpy_ptds {stream} (to: u64, from: u64, bytes: usize) { any(stream, to, from, bytes, When::Synchronous) }
    call fn cuMemcpyAsync | cuMemcpyAsync_ptsz [stream] (to: u64, from: u64, bytes: usize, stream: Handle) {
        any(stream, to, from, bytes, When::Enqueued)
    }
    call fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds {stream} (to: u64, from: u64, bytes: usize) { up(stream, to, from, bytes, When::Synchronous) }
    call fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz [stream] (to: u64, from: u64, bytes: usize, stream: Handle) {
        up(stream, to, from, bytes, When::Enqueued)
    }
    call fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds {stream} (to: u64, from: u64, bytes: usize) { down(stream, to, from, bytes, When::Synchronous) }
    call fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz [stream] (to: u64, from: u64, bytes: usize, stream: Handle) {
        down(stream, to, from, bytes, When::Enqueued)
    }
    call fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds {stream} (to: u64, from: u64, bytes: usize) { across(stream, to, from, bytes, When::Synchronous) }
    call fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz [stream] (to: u64, from: u64, bytes: usize, stream: Handle) {
        across(stream, to, from, bytes, When::Enqueued)
    }
    call fn cuMemcpyPeer | cuMemcpyPeer_ptds {stream} (to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize) {
        peer(stream, (to, to_context), (from, from_context), bytes, When::Synchronous)
    }
    call fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz [stream] (to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle) {
        peer(stream, (to, to_context), (from, from_context), bytes, When::Enqueued)
    }
    call fn cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz [stream] (to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, _attributes: Handle, _indices: Handle, _attribute_count: usize, failed: Out<usize>, stream: Handle) {
        batch(stream, (to, from, sizes), count, Some(failed))
    }
    call fn cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz [stream] (to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, _attributes: Handle, _indices: Handle, _attribute_count: usize, stream: Handle) {
        batch(stream, (to, from, sizes), count, None)
    }
}
