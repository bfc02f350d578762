//! Fills.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::MemorySet;
use rekindle_protocol::operation::SetMemory;

use crate::abi::{Handle, Result};
use crate::export::exports;
use crate::stream::{self, enter};
use crate::{lane, memory};

use super::linear::When;

/// Rows of `width` elements.
struct Area {
    address: u64,
    pitch: usize,
    width: usize,
    height: usize,
}

fn row(address: u64, width: usize) -> Area {
    Area { address, pitch: 0, width, height: 1 }
}

/// Checks a fill as the driver does; `None` for an empty one.
pub fn check(set: MemorySet) -> Result<Option<MemorySet>> {
    let element = u64::from(set.element);
    if !matches!(element, 1 | 2 | 4)
        || !set.address.is_multiple_of(element)
        || set.height > 1 && (!set.pitch.is_multiple_of(element) || set.pitch < set.width * element)
    {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if set.width == 0 || set.height == 0 {
        return Ok(None);
    }
    if set.address == 0 { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(Some(set)) }
}

fn fill(stream: Handle, area: Area, value: u32, element: u8, when: When) -> Result<()> {
    let target = enter(stream)?;
    let set = MemorySet {
        address: area.address,
        pitch: area.pitch as u64,
        value,
        element,
        width: area.width as u64,
        height: area.height as u64,
    };
    let Some(set) = check(set)? else { return Ok(()) };
    lane::post(&SetMemory { device: target.device, stream: target.id, set }, &[])?;
    if when == When::Synchronous && memory::is_pinned(set.address, set.width) {
        return stream::synchronize(target);
    }
    Ok(())
}

exports! {
    call fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds {stream} (address: u64, value: u8, count: usize) {
        fill(stream, row(address, count), value.into(), 1, When::Synchronous)
    }
    call fn cuMemsetD8Async | cuMemsetD8Async_ptsz [stream] (address: u64, value: u8, count: usize, stream: Handle) {
        fill(stream, row(address, count), value.into(), 1, When::Enqueued)
    }
    call fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds {stream} (address: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill(stream, Area { address, pitch, width, height }, value.into(), 1, When::Synchronous)
    }
    call fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz [stream] (address: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) {
        fill(stream, Area { address, pitch, width, height }, value.into(), 1, When::Enqueued)
    }
    call fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds {stream} (address: u64, value: u16, count: usize) {
        fill(stream, row(address, count), value.into(), 2, When::Synchronous)
    }
    call fn cuMemsetD16Async | cuMemsetD16Async_ptsz [stream] (address: u64, value: u16, count: usize, stream: Handle) {
        fill(stream, row(address, count), value.into(), 2, When::Enqueued)
    }
    call fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds {stream} (address: u64, pitch: usize, value: u16, width: usize, height: usize) {
        fill(stream, Area { address, pitch, width, height }, value.into(), 2, When::Synchronous)
    }
    call fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz [stream] (address: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) {
        fill(stream, Area { address, pitch, width, height }, value.into(), 2, When::Enqueued)
    }
    call fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds {stream} (address: u64, value: u32, count: usize) {
        fill(stream, row(address, count), value, 4, When::Synchronous)
    }
    call fn cuMemsetD32Async | cuMemsetD32Async_ptsz [stream] (address: u64, value: u32, count: usize, stream: Handle) {
        fill(stream, row(address, count), value, 4, When::Enqueued)
    }
    call fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds {stream} (address: u64, pitch: usize, value: u32, width: usize, height: usize) {
        fill(stream, Area { address, pitch, width, height }, value, 4, When::Synchronous)
    }
    call fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz [stream] (address: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) {
        fill(stream, Area { address, pitch, width, height }, value, 4, When::Enqueued)
    }
}
