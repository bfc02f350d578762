//! Copies of boxes: rows, and slices of rows, each side with its own pitch.

use rekindle_cuda::types::{Memcpy2D, Memcpy3D, memory_type};
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::Copy3D;
use rekindle_protocol::operation::CopyStrided;

use crate::abi::{Handle, In, Result};
use crate::export::exports;
use crate::stream::{self, Place, resolve};
use crate::{lane, memory};

use super::Side;
use super::linear::{self, When};

/// One side of a box: its first byte, and the bytes from row to row and from slice to slice.
struct Face {
    side: Side,
    pitch: u64,
    slice: u64,
}

struct Box3 {
    to: Face,
    from: Face,
    width: u64,
    height: u64,
    depth: u64,
}

/// One side as the C structures describe it.
struct Described {
    kind: u32,
    host: u64,
    device: u64,
    x: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
}

fn face(described: Described, width: u64, rows: u64, slices: u64) -> Result<Face> {
    let Described { kind, host, device, x, y, z, pitch, height } = described;
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
    Ok(Face { side, pitch, slice })
}

fn from_2d(c: &Memcpy2D) -> Result<Option<Box3>> {
    let (width, height) = (c.width as u64, c.height as u64);
    if width == 0 || height == 0 {
        return Ok(None);
    }
    let to = Described {
        kind: c.dst_type,
        host: c.dst_host as u64,
        device: c.dst_device,
        x: c.dst_x,
        y: c.dst_y,
        z: 0,
        pitch: c.dst_pitch,
        height: 0,
    };
    let from = Described {
        kind: c.src_type,
        host: c.src_host as u64,
        device: c.src_device,
        x: c.src_x,
        y: c.src_y,
        z: 0,
        pitch: c.src_pitch,
        height: 0,
    };
    let (to, from) = (face(to, width, height, 1)?, face(from, width, height, 1)?);
    Ok(Some(Box3 { to, from, width, height, depth: 1 }))
}

fn from_3d(c: &Memcpy3D) -> Result<Option<Box3>> {
    let (width, height, depth) = (c.width as u64, c.height as u64, c.depth as u64);
    if width == 0 || height == 0 || depth == 0 {
        return Ok(None);
    }
    let to = Described {
        kind: c.dst_type,
        host: c.dst_host as u64,
        device: c.dst_device,
        x: c.dst_x,
        y: c.dst_y,
        z: c.dst_z,
        pitch: c.dst_pitch,
        height: c.dst_height,
    };
    let from = Described {
        kind: c.src_type,
        host: c.src_host as u64,
        device: c.src_device,
        x: c.src_x,
        y: c.src_y,
        z: c.src_z,
        pitch: c.src_pitch,
        height: c.src_height,
    };
    let (to, from) = (face(to, width, height, depth)?, face(from, width, height, depth)?);
    Ok(Some(Box3 { to, from, width, height, depth }))
}

/// A box between two pointers of any kind: of each its address, the bytes of a row and the rows of a layer.
pub struct PointerBox {
    pub to: (u64, usize, usize),
    pub from: (u64, usize, usize),
    pub extent: [u64; 3],
}

pub fn copy_pointers(place: Place, wanted: &PointerBox, when: When) -> Result<()> {
    let [width, height, depth] = wanted.extent;
    let side = |(device, pitch, height): (u64, usize, usize)| Described {
        kind: memory_type::UNIFIED,
        host: 0,
        device,
        x: 0,
        y: 0,
        z: 0,
        pitch,
        height,
    };
    let to = face(side(wanted.to), width, height, depth)?;
    let from = face(side(wanted.from), width, height, depth)?;
    copy(place, Some(Box3 { to, from, width, height, depth }), when)
}

/// For graph nodes: the copy if both of its sides are memory that the worker reaches.
pub fn for_graph(c: &Memcpy3D) -> Result<Copy3D> {
    let wanted = from_3d(c)?.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    shared(&wanted).ok_or(CUDA_ERROR_NOT_SUPPORTED)
}

fn shared(b: &Box3) -> Option<Copy3D> {
    let (Side::Shared(to), Side::Shared(from)) = (b.to.side, b.from.side) else { return None };
    Some(Copy3D {
        to,
        to_pitch: b.to.pitch,
        to_slice: b.to.slice,
        from,
        from_pitch: b.from.pitch,
        from_slice: b.from.slice,
        width: b.width,
        height: b.height,
        depth: b.depth,
    })
}

fn copy(place: Place, wanted: Option<Box3>, when: When) -> Result<()> {
    let Some(b) = wanted else { return Ok(()) };
    let packed = |face: &Face| {
        (face.pitch == b.width || b.height == 1 && b.depth == 1)
            && (face.slice == b.width * b.height || b.depth == 1)
    };
    if packed(&b.to) && packed(&b.from) {
        return linear::copy(place, b.to.side, b.from.side, b.width * b.height * b.depth, when);
    }
    if let Some(copy) = shared(&b) {
        lane::post(&CopyStrided { device: place.device, stream: place.id, copy }, &[])?;
        let pinned = |address| memory::is_pinned(address, b.width);
        return match when {
            When::Synchronous if pinned(copy.to) || pinned(copy.from) => stream::synchronize(place),
            _ => Ok(()),
        };
    }
    let (to, from) = (&b.to, &b.from);
    let offsets = (0..b.depth).flat_map(|z| {
        (0..b.height).map(move |y| (z * to.slice + y * to.pitch, z * from.slice + y * from.pitch))
    });
    linear::rows(place, to.side, from.side, b.width, offsets)
}

exports! {
    call fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds {stream} (description: In<Memcpy2D>) {
        copy(resolve(stream)?, from_2d(&description.get()?)?, When::Synchronous)
    }
    call fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds {stream} (description: In<Memcpy2D>) {
        copy(resolve(stream)?, from_2d(&description.get()?)?, When::Synchronous)
    }
    call fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz [stream] (description: In<Memcpy2D>, stream: Handle) {
        copy(resolve(stream)?, from_2d(&description.get()?)?, When::Enqueued)
    }
    call fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds {stream} (description: In<Memcpy3D>) {
        copy(resolve(stream)?, from_3d(&description.get()?)?, When::Synchronous)
    }
    call fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz [stream] (description: In<Memcpy3D>, stream: Handle) {
        copy(resolve(stream)?, from_3d(&description.get()?)?, When::Enqueued)
    }
    call fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds {stream} (description: In<Memcpy3D>) {
        copy(resolve(stream)?, from_3d(&description.get()?)?, When::Synchronous)
    }
    call fn cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz [stream] (description: In<Memcpy3D>, stream: Handle) {
        copy(resolve(stream)?, from_3d(&description.get()?)?, When::Enqueued)
    }
}
