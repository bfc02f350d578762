//! Copies of boxes: rows, and slices of rows, each side with its own pitch.

use rekindle_cuda::types::{Memcpy2D, Memcpy3D, memory_type};
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::Copy3D;
use rekindle_protocol::operation::{CopyStrided, NodeAction};

use crate::abi::{Handle, In, Result};
use crate::export::exports;
use crate::graph::NodeResource;
use crate::stream::{self, StreamTarget, enter};
use crate::{lane, memory};

use super::linear::{self, When};
use super::{Side, across, array, staged};

/// One side of a box: its first byte, and the bytes from row to row and from slice to slice.
pub(super) struct SideLayout {
    pub side: Side,
    pub pitch: u64,
    pub slice: u64,
}

struct Box3 {
    to: SideLayout,
    from: SideLayout,
    width: u64,
    height: u64,
    depth: u64,
}

/// One side as the C structures describe it.
#[derive(Default)]
pub(super) struct SideDescription {
    pub kind: u32,
    pub host: u64,
    pub device: u64,
    pub array: Handle,
    pub x: usize,
    pub y: usize,
    pub z: usize,
    pub level: usize,
    pub pitch: usize,
    pub height: usize,
}

/// Both sides, where the copy goes first, and its width in bytes, height and depth.
pub(super) type StridedCopy = (SideDescription, SideDescription, [u64; 3]);

pub(super) fn face(described: &SideDescription, [width, rows, slices]: [u64; 3]) -> Result<SideLayout> {
    let SideDescription { kind, host, device, x, y, z, pitch, height, .. } = *described;
    let pitch = if pitch == 0 { width } else { pitch as u64 };
    if pitch < width && rows > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let slice = pitch * (if height == 0 { rows } else { height as u64 });
    let skip = z as u64 * slice + y as u64 * pitch + x as u64;
    let bytes = (slices - 1) * slice + (rows - 1) * pitch + width;
    let side = match kind {
        memory_type::HOST => Side::host(host + skip, bytes),
        memory_type::DEVICE => Side::Shared(device + skip),
        memory_type::UNIFIED => Side::unified(device + skip, bytes),
        memory_type::ARRAY => return Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    Ok(SideLayout { side, pitch, slice })
}

fn of_2d(c: &Memcpy2D) -> StridedCopy {
    let to = SideDescription {
        kind: c.dst_type,
        host: c.dst_host as u64,
        device: c.dst_device,
        array: c.dst_array.into(),
        x: c.dst_x,
        y: c.dst_y,
        pitch: c.dst_pitch,
        ..SideDescription::default()
    };
    let from = SideDescription {
        kind: c.src_type,
        host: c.src_host as u64,
        device: c.src_device,
        array: c.src_array.into(),
        x: c.src_x,
        y: c.src_y,
        pitch: c.src_pitch,
        ..SideDescription::default()
    };
    (to, from, [c.width as u64, c.height as u64, 1])
}

fn of_3d(c: &Memcpy3D) -> StridedCopy {
    let to = SideDescription {
        kind: c.dst_type,
        host: c.dst_host as u64,
        device: c.dst_device,
        array: c.dst_array.into(),
        x: c.dst_x,
        y: c.dst_y,
        z: c.dst_z,
        level: c.dst_lod,
        pitch: c.dst_pitch,
        height: c.dst_height,
    };
    let from = SideDescription {
        kind: c.src_type,
        host: c.src_host as u64,
        device: c.src_device,
        array: c.src_array.into(),
        x: c.src_x,
        y: c.src_y,
        z: c.src_z,
        level: c.src_lod,
        pitch: c.src_pitch,
        height: c.src_height,
    };
    (to, from, [c.width as u64, c.height as u64, c.depth as u64])
}

/// A box of memory on both sides; none where it is empty.
fn box_of((to, from, size): &StridedCopy) -> Result<Option<Box3>> {
    if size.contains(&0) {
        return Ok(None);
    }
    let [width, height, depth] = *size;
    let (to, from) = (face(to, *size)?, face(from, *size)?);
    Ok(Some(Box3 { to, from, width, height, depth }))
}

fn is_of_arrays((to, from, _): &StridedCopy) -> bool {
    [to, from].iter().any(|side| side.kind == memory_type::ARRAY)
}

/// What a node of a graph does for a copy, and what it uses.
pub fn for_graph(c: &Memcpy3D) -> Result<(NodeAction, Option<NodeResource>)> {
    let whole = of_3d(c);
    if is_of_arrays(&whole) {
        let (to, from, size) = whole;
        return array::for_graph(&to, &from, size).map(|copy| (NodeAction::CopyArray(copy), None));
    }
    let wanted = box_of(&whole)?.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    match shared(&wanted) {
        Some(copy) => Ok((NodeAction::Copy(copy), None)),
        None => staged::node(wanted.to.side, wanted.from.side, wanted.copy())
            .map(|(action, kept)| (action, Some(kept))),
    }
}

impl Box3 {
    fn copy(&self) -> Copy3D {
        Copy3D {
            to: self.to.side.address(),
            to_pitch: self.to.pitch,
            to_slice: self.to.slice,
            from: self.from.side.address(),
            from_pitch: self.from.pitch,
            from_slice: self.from.slice,
            width: self.width,
            height: self.height,
            depth: self.depth,
        }
    }
}

fn shared(b: &Box3) -> Option<Copy3D> {
    matches!((b.to.side, b.from.side), (Side::Shared(_), Side::Shared(_))).then(|| b.copy())
}

pub(super) fn copy(target: StreamTarget, whole: StridedCopy, when: When) -> Result<()> {
    if is_of_arrays(&whole) {
        let (to, from, size) = whole;
        return array::copy(target, &to, &from, size, when);
    }
    let Some(b) = box_of(&whole)? else { return Ok(()) };
    let packed = |face: &SideLayout| {
        (face.pitch == b.width || b.height == 1 && b.depth == 1)
            && (face.slice == b.width * b.height || b.depth == 1)
    };
    if packed(&b.to) && packed(&b.from) {
        return linear::copy(target, b.to.side, b.from.side, b.width * b.height * b.depth, when);
    }
    if let Some(copy) = shared(&b) {
        across::in_order(target, b.to.side, b.from.side, || {
            lane::post(&CopyStrided { device: target.device, stream: target.id, copy }, &[])
        })?;
        let pinned = |address| memory::is_pinned(address, b.width);
        return match when {
            When::Synchronous if pinned(copy.to) || pinned(copy.from) => stream::synchronize(target),
            _ => Ok(()),
        };
    }
    if when == When::Enqueued && staged::captured(target, b.to.side, b.from.side, b.copy())? {
        return Ok(());
    }
    let (to, from) = (&b.to, &b.from);
    let offsets = (0..b.depth).flat_map(|z| {
        (0..b.height).map(move |y| (z * to.slice + y * to.pitch, z * from.slice + y * from.pitch))
    });
    linear::rows(target, to.side, from.side, b.width, offsets)
}

exports! {
    call fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds {stream} (description: In<Memcpy2D>) {
        copy(enter(stream)?, of_2d(&description.get()?), When::Synchronous)
    }
    call fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds {stream} (description: In<Memcpy2D>) {
        copy(enter(stream)?, of_2d(&description.get()?), When::Synchronous)
    }
    call fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz [stream] (description: In<Memcpy2D>, stream: Handle) {
        copy(enter(stream)?, of_2d(&description.get()?), When::Enqueued)
    }
    call fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds {stream} (description: In<Memcpy3D>) {
        copy(enter(stream)?, of_3d(&description.get()?), When::Synchronous)
    }
    call fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz [stream] (description: In<Memcpy3D>, stream: Handle) {
        copy(enter(stream)?, of_3d(&description.get()?), When::Enqueued)
    }
    call fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds {stream} (description: In<Memcpy3D>) {
        copy(enter(stream)?, of_3d(&description.get()?), When::Synchronous)
    }
    call fn cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz [stream] (description: In<Memcpy3D>, stream: Handle) {
        copy(enter(stream)?, of_3d(&description.get()?), When::Enqueued)
    }
}
