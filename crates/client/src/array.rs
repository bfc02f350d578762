//! Arrays, with mipmaps and without. The client knows what each is like; the device has it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rekindle_cuda::types::{Array3DDescriptor, ArrayDescriptor};
use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{ArrayDescription, ArrayFormat, ArrayLevel};
use rekindle_protocol::operation::{ArrayCreate, ArrayDestroy, Id};

use crate::abi::{Handle, In, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::{context, lane};

/// Sparse, mapped later, or for video: memory that is not the array's own, or formats of several planes.
const NOT_KEPT: u32 = 0x40 | 0x80 | 0x100;
const KNOWN_FLAGS: u32 = 0x3f | NOT_KEPT;

/// An array without mipmaps, or a level of one that has some.
pub struct Array {
    pub at: ArrayLevel<Id>,
    pub device: u8,
    /// Of the whole array.
    pub description: ArrayDescription,
}

impl Array {
    /// Bytes of a row, rows, slices or layers.
    pub fn extent(&self) -> [u64; 3] {
        self.description.extent(self.at.level.unwrap_or(0))
    }

    fn described(&self) -> Array3DDescriptor {
        let ArrayDescription { height, depth, format, channels, flags, .. } = self.description;
        let [row, rows, slices] = self.extent();
        let kept = |has: u64, size: u64| if has == 0 { 0 } else { size as usize };
        Array3DDescriptor {
            width: (row / self.description.element_bytes()) as usize,
            height: kept(height, rows),
            depth: kept(depth, slices),
            format: format.number(),
            channels,
            flags,
        }
    }
}

impl Object for Array {
    const KIND: Kind = Kind::Array;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

pub struct MipmappedArray {
    pub id: Id,
    pub device: u8,
    pub description: ArrayDescription,
    /// Handles of levels that were asked for.
    levels: Mutex<Vec<(u32, Handle)>>,
}

impl Object for MipmappedArray {
    const KIND: Kind = Kind::MipmappedArray;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A format that the driver has and arrays cannot be kept in: of several planes, normalised, or in blocks.
fn is_other(format: u32) -> bool {
    matches!(format, 0x50 | 0x91..=0xa9 | 0xb0..=0xb5 | 0xc0..=0xcb)
}

fn description(given: &Array3DDescriptor, levels: Option<u32>) -> Result<ArrayDescription> {
    if given.flags & !KNOWN_FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if given.flags & NOT_KEPT != 0 || is_other(given.format) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let format = ArrayFormat::new(given.format).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if !matches!(given.channels, 1 | 2 | 4) || given.width == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut description = ArrayDescription {
        width: given.width as u64,
        height: given.height as u64,
        depth: given.depth as u64,
        format,
        channels: given.channels,
        flags: given.flags,
        levels: None,
    };
    if let Some(levels) = levels {
        let depth = if description.is_layered() { 0 } else { given.depth };
        let longest = given.width.max(given.height).max(depth);
        description.levels = Some(levels.clamp(1, 1 + longest.ilog2()));
    }
    Ok(description)
}

/// Makes one on the current context's device.
fn make(description: ArrayDescription) -> Result<(Id, u8)> {
    let device = context::device()?;
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    lane::ask(&ArrayCreate { device, id, description })?;
    Ok((id, device))
}

fn create(out: Out<Handle>, given: &Array3DDescriptor) -> Result<()> {
    out.check()?;
    let description = description(given, None)?;
    let (array, device) = make(description)?;
    out.put(arena::insert(Array { at: ArrayLevel { array, level: None }, device, description })?)
}

fn destroy(handle: Handle) -> Result<()> {
    // A level goes with its array.
    if arena::get::<Array>(handle)?.at.level.is_some() {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    lane::ask(&ArrayDestroy { id: arena::remove::<Array>(handle)?.at.array })
}

fn level(out: Out<Handle>, handle: Handle, level: u32) -> Result<()> {
    out.check()?;
    let whole = arena::get::<MipmappedArray>(handle)?;
    if !whole.description.all_levels().contains(&level) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut levels = whole.levels.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, known)) = levels.iter().find(|(number, _)| *number == level) {
        return out.put(*known);
    }
    let at = ArrayLevel { array: whole.id, level: Some(level) };
    let made = arena::insert(Array { at, device: whole.device, description: whole.description })?;
    levels.push((level, made));
    out.put(made)
}

fn destroy_mipmapped(handle: Handle) -> Result<()> {
    let whole = arena::remove::<MipmappedArray>(handle)?;
    for (_, level) in whole.levels.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        arena::remove::<Array>(level)?;
    }
    lane::ask(&ArrayDestroy { id: whole.id })
}

exports! {
    call fn cuArrayCreate_v2(out: Out<Handle>, given: In<ArrayDescriptor>) {
        let ArrayDescriptor { width, height, format, channels } = given.get()?;
        create(out, &Array3DDescriptor { width, height, depth: 0, format, channels, flags: 0 })
    }
    call fn cuArray3DCreate_v2(out: Out<Handle>, given: In<Array3DDescriptor>) { create(out, &given.get()?) }
    ready fn cuArrayGetDescriptor_v2(out: Out<ArrayDescriptor>, array: Handle) {
        let Array3DDescriptor { width, height, format, channels, .. } = arena::get::<Array>(array)?.described();
        out.put(ArrayDescriptor { width, height, format, channels })
    }
    ready fn cuArray3DGetDescriptor_v2(out: Out<Array3DDescriptor>, array: Handle) {
        out.put(arena::get::<Array>(array)?.described())
    }
    call fn cuArrayDestroy(array: Handle) { destroy(array) }
    call fn cuMipmappedArrayCreate(out: Out<Handle>, given: In<Array3DDescriptor>, levels: u32) {
        out.check()?;
        let description = description(&given.get()?, Some(levels))?;
        let (id, device) = make(description)?;
        out.put(arena::insert(MipmappedArray { id, device, description, levels: Mutex::default() })?)
    }
    call fn cuMipmappedArrayGetLevel(out: Out<Handle>, array: Handle, number: u32) { level(out, array, number) }
    call fn cuMipmappedArrayDestroy(array: Handle) { destroy_mipmapped(array) }

    // No array is sparse, is mapped later, or has planes: the driver answers the same of one that is not.
    ready fn cuArrayGetSparseProperties(_out: Handle, array: Handle) {
        arena::get::<Array>(array).and(Err(CUDA_ERROR_INVALID_VALUE))
    }
    ready fn cuMipmappedArrayGetSparseProperties(_out: Handle, array: Handle) {
        arena::get::<MipmappedArray>(array).and(Err(CUDA_ERROR_INVALID_VALUE))
    }
    ready fn cuArrayGetMemoryRequirements(_out: Handle, array: Handle, _device: i32) {
        arena::get::<Array>(array).and(Err(CUDA_ERROR_INVALID_VALUE))
    }
    ready fn cuMipmappedArrayGetMemoryRequirements(_out: Handle, array: Handle, _device: i32) {
        arena::get::<MipmappedArray>(array).and(Err(CUDA_ERROR_INVALID_VALUE))
    }
    ready fn cuArrayGetPlane(_out: Handle, array: Handle, _plane: u32) {
        arena::get::<Array>(array).and(Err(CUDA_ERROR_INVALID_VALUE))
    }
}
