//! Copies from and to arrays.
//!
//! Memory that the worker reaches is copied at once. Pageable memory goes through device memory, as far as that takes some:
//! there staged rows are put together, in the order of the stream.

use rekindle_cuda::types::memory_type;
use rekindle_cuda::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
};
use rekindle_device::{ArrayCopy, ArrayLevel, CopyEnd};
use rekindle_protocol::operation::{CopyArray, Id, MemoryAllocateAsync, MemoryFreeAsync};

use crate::abi::{Handle, In, Out, Result};
use crate::array::Array;
use crate::export::exports;
use crate::stream::{self, StreamTarget, enter, resolve};
use crate::{arena, lane, memory};

use super::Side;
use super::linear::{self, When};
use super::strided::{SideDescription, SideLayout, face};

/// Bytes of device memory that pageable memory goes through.
const THROUGH: u64 = 8 << 20;

/// One end: a place in an array, or memory.
enum End {
    Array { at: ArrayLevel<Id>, x: u64, y: u64, z: u64 },
    Memory(SideLayout),
}

fn end(target: StreamTarget, described: &SideDescription, size: [u64; 3]) -> Result<End> {
    if described.level != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if described.kind != memory_type::ARRAY {
        let height = described.height as u64;
        if size[2] > 1 && height != 0 && height < size[1] {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        return face(described, size).map(End::Memory);
    }
    let array = arena::get::<Array>(described.array)?;
    if array.device != target.device {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    let [x, y, z] = [described.x, described.y, described.z].map(|at| at as u64);
    let element = array.description.element_bytes();
    let inside = [x, y, z].into_iter().zip(size).zip(array.extent());
    let fits =
        inside.into_iter().all(|((at, size), most)| at.checked_add(size).is_some_and(|end| end <= most));
    if !fits || !x.is_multiple_of(element) || !size[0].is_multiple_of(element) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(End::Array { at: array.at, x, y, z })
}

/// A copy between two sides, of which at least one is an array.
pub(super) fn copy(
    target: StreamTarget,
    to: &SideDescription,
    from: &SideDescription,
    size: [u64; 3],
    when: When,
) -> Result<()> {
    if size.contains(&0) {
        return Ok(());
    }
    match (end(target, to, size)?, end(target, from, size)?) {
        (
            End::Array { at, x, y, z },
            End::Memory(SideLayout { side: Side::Pageable(from), pitch, slice }),
        ) => {
            let to = |y_, z_| CopyEnd::Array { at, x, y: y + y_, z: z + z_ };
            through(target, StagedArrayCopy { host: from, pitch, slice, size, up: true }, to)
        }
        (End::Memory(SideLayout { side: Side::Pageable(to), pitch, slice }), End::Array { at, x, y, z }) => {
            let from = |y_, z_| CopyEnd::Array { at, x, y: y + y_, z: z + z_ };
            through(target, StagedArrayCopy { host: to, pitch, slice, size, up: false }, from)
        }
        (to, from) => {
            let pinned = [&to, &from].into_iter().any(|end| match end {
                End::Memory(SideLayout { side: Side::Shared(address), .. }) => {
                    memory::is_pinned(*address, size[0])
                }
                _ => false,
            });
            post(target, at_once(to)?, at_once(from)?, size)?;
            if when == When::Synchronous && pinned { stream::synchronize(target) } else { Ok(()) }
        }
    }
}

/// For nodes of graphs: a copy between arrays, or memory that the worker reaches.
pub(super) fn for_graph(
    to: &SideDescription,
    from: &SideDescription,
    size: [u64; 3],
) -> Result<ArrayCopy<Id>> {
    if size.contains(&0) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let target = resolve(Handle::NULL)?;
    let (to, from) = (end(target, to, size)?, end(target, from, size)?);
    let is_pageable = |end: &End| matches!(end, End::Memory(SideLayout { side: Side::Pageable(_), .. }));
    if is_pageable(&to) || is_pageable(&from) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let [width, height, depth] = size;
    Ok(ArrayCopy { to: at_once(to)?, from: at_once(from)?, width, height, depth })
}

/// The end as the worker takes it.
fn at_once(end: End) -> Result<CopyEnd<Id>> {
    match end {
        End::Array { at, x, y, z } => Ok(CopyEnd::Array { at, x, y, z }),
        End::Memory(SideLayout { side: Side::Shared(address), pitch, slice }) if address != 0 => {
            Ok(CopyEnd::Linear { address, pitch, slice })
        }
        End::Memory(_) => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn post(
    target: StreamTarget,
    to: CopyEnd<Id>,
    from: CopyEnd<Id>,
    [width, height, depth]: [u64; 3],
) -> Result<()> {
    let StreamTarget { device, id: stream } = target;
    lane::post(&CopyArray { device, stream, copy: ArrayCopy { to, from, width, height, depth } }, &[])
}

/// Pageable memory on its way to an array, or from one.
struct StagedArrayCopy {
    host: u64,
    pitch: u64,
    slice: u64,
    size: [u64; 3],
    up: bool,
}

fn through(
    target: StreamTarget,
    wanted: StagedArrayCopy,
    array: impl Fn(u64, u64) -> CopyEnd<Id>,
) -> Result<()> {
    if wanted.host == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if stream::capture(target)?.status != 0 {
        return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    let StreamTarget { device, id: stream } = target;
    let [width, height, depth] = wanted.size;
    let rows = (THROUGH / width).clamp(1, height);
    let address = lane::ask(&MemoryAllocateAsync { device, bytes: width * rows, stream })?;
    let memory = CopyEnd::Linear { address, pitch: width, slice: width * rows };
    let pieces = (0..depth).flat_map(|z| (0..height).step_by(rows as usize).map(move |y| (y, z)));
    let piece = |(y, z): (u64, u64)| {
        let count = rows.min(height - y);
        let host = Side::Pageable(wanted.host + z * wanted.slice + y * wanted.pitch);
        let size = [width, count, 1];
        if wanted.up {
            let offsets = (0..count).map(|row| (row * width, row * wanted.pitch));
            linear::rows(target, Side::Shared(address), host, width, offsets)?;
            post(target, array(y, z), memory, size)
        } else {
            post(target, memory, array(y, z), size)?;
            let offsets = (0..count).map(|row| (row * wanted.pitch, row * width));
            linear::rows(target, host, Side::Shared(address), width, offsets)
        }
    };
    let mut pieces = pieces;
    let copied = pieces.try_for_each(piece);
    lane::post(&MemoryFreeAsync { device, address, stream }, &[])?;
    copied
}

/// A run of bytes in an array of one dimension.
fn run(handle: Handle, offset: usize) -> Result<SideDescription> {
    let array = arena::get::<Array>(handle)?;
    if array.description.height != 0 || array.description.depth != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(SideDescription { array: handle, x: offset, ..side(memory_type::ARRAY, 0, 0) })
}

fn side(kind: u32, host: u64, device: u64) -> SideDescription {
    SideDescription { kind, host, device, ..SideDescription::default() }
}

fn bytes(stream: Handle, to: SideDescription, from: SideDescription, count: usize, when: When) -> Result<()> {
    copy(enter(stream)?, &to, &from, [count as u64, 1, 1], when)
}

fn up(
    stream: Handle,
    (array, offset): (Handle, usize),
    from: In<u8>,
    count: usize,
    when: When,
) -> Result<()> {
    bytes(stream, run(array, offset)?, side(memory_type::HOST, from.0 as u64, 0), count, when)
}

fn down(
    stream: Handle,
    to: Out<u8>,
    (array, offset): (Handle, usize),
    count: usize,
    when: When,
) -> Result<()> {
    bytes(stream, side(memory_type::HOST, to.0 as u64, 0), run(array, offset)?, count, when)
}

exports! {
    call fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds {stream} (to: Handle, offset: usize, from: In<u8>, count: usize) {
        up(stream, (to, offset), from, count, When::Synchronous)
    }
    call fn cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz [stream] (to: Handle, offset: usize, from: In<u8>, count: usize, stream: Handle) {
        up(stream, (to, offset), from, count, When::Enqueued)
    }
    call fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds {stream} (to: Out<u8>, from: Handle, offset: usize, count: usize) {
        down(stream, to, (from, offset), count, When::Synchronous)
    }
    call fn cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz [stream] (to: Out<u8>, from: Handle, offset: usize, count: usize, stream: Handle) {
        down(stream, to, (from, offset), count, When::Enqueued)
    }
    call fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds {stream} (to: Handle, offset: usize, from: u64, count: usize) {
        bytes(stream, run(to, offset)?, side(memory_type::DEVICE, 0, from), count, When::Synchronous)
    }
    call fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds {stream} (to: u64, from: Handle, offset: usize, count: usize) {
        bytes(stream, side(memory_type::DEVICE, 0, to), run(from, offset)?, count, When::Synchronous)
    }
    call fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds {stream} (to: Handle, to_offset: usize, from: Handle, from_offset: usize, count: usize) {
        bytes(stream, run(to, to_offset)?, run(from, from_offset)?, count, When::Synchronous)
    }
}
