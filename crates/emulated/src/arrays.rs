//! Arrays: memory of the host in which rows lie one behind the other, level after level.
//!
//! They are no device memory: no address of theirs is known to a kernel. Who copies or reads one keeps it.

use std::collections::HashMap;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::{
    ARRAY_CUBEMAP, ARRAY_LAYERED, Array, ArrayDescription, ArrayFormat, ArrayLevel, Result,
};
use rekindle_ptx::{Image, TexelFormat};

use crate::physical::{Budget, Share};

const PAGE: u64 = 4096;
/// Largest sizes, as the attributes say them.
const ONE: [u64; 3] = [131_072, 0, 0];
const TWO: [u64; 3] = [131_072, 65536, 0];
const THREE: [u64; 3] = [16384, 16384, 16384];
const LAYERS: [u64; 3] = [32768, 32768, 2048];

/// Memory of an array, zeroed.
pub(crate) struct Storage {
    mapping: MmapRaw,
    _share: Share,
}

impl Storage {
    fn new(bytes: u64, budget: &Arc<Budget>) -> Result<Storage> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let share = budget.take(bytes)?;
        let mapping = MmapOptions::new().len(bytes as usize).no_reserve_swap().map_anon();
        let mapping = mapping.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?.into();
        Ok(Storage { mapping, _share: share })
    }
}

#[derive(Clone)]
pub(crate) struct ArrayMemory {
    pub description: ArrayDescription,
    pub storage: Arc<Storage>,
}

impl ArrayMemory {
    /// Where a level begins.
    fn address(&self, level: u32) -> u64 {
        self.storage.mapping.as_ptr() as u64
            + (0..level).map(|level| self.description.level_bytes(level)).sum::<u64>()
    }

    /// A level as kernels read and write it.
    pub fn image(&self, level: u32) -> Image {
        let description = &self.description;
        let [row, rows, slices] = description.extent(level);
        let element = description.element_bytes();
        Image {
            address: self.address(level),
            format: texel(description.format),
            channels: description.channels as u8,
            size: [row / element, rows, slices].map(|size| size as u32),
            pitch: row,
            slice: row * rows,
        }
    }
}

pub(crate) fn texel(format: ArrayFormat) -> TexelFormat {
    match format {
        ArrayFormat::U8 => TexelFormat::U8,
        ArrayFormat::U16 => TexelFormat::U16,
        ArrayFormat::U32 => TexelFormat::U32,
        ArrayFormat::I8 => TexelFormat::I8,
        ArrayFormat::I16 => TexelFormat::I16,
        ArrayFormat::I32 => TexelFormat::I32,
        ArrayFormat::F16 => TexelFormat::F16,
        ArrayFormat::F32 => TexelFormat::F32,
    }
}

/// All arrays of a device.
#[derive(Default)]
pub(crate) struct Arrays {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last: u64,
    live: HashMap<u64, ArrayMemory>,
}

impl Arrays {
    pub fn create(&self, description: &ArrayDescription, budget: &Arc<Budget>) -> Result<Array> {
        check(description)?;
        let storage = Arc::new(Storage::new(description.bytes(), budget)?);
        let mut inner = self.inner.lock();
        inner.last += 1;
        let number = inner.last;
        inner.live.insert(number, ArrayMemory { description: *description, storage });
        Ok(Array(number))
    }

    pub fn destroy(&self, array: Array) -> Result<()> {
        self.inner.lock().live.remove(&array.0).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn get(&self, array: Array) -> Result<ArrayMemory> {
        self.inner.lock().live.get(&array.0).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// An array without mipmaps, or a level of one that has some: its number.
    pub fn level(&self, at: &ArrayLevel<Array>) -> Result<(ArrayMemory, u32)> {
        let array = self.get(at.array)?;
        match (at.level, array.description.levels) {
            (None, None) => Ok((array, 0)),
            (Some(level), Some(levels)) if level < levels => Ok((array, level)),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

fn check(description: &ArrayDescription) -> Result<()> {
    let ArrayDescription { width, height, depth, channels, flags, .. } = *description;
    let size = [width, height, depth];
    let within = |most: [u64; 3]| size.iter().zip(most).all(|(size, most)| *size <= most);
    let shape = if flags & ARRAY_CUBEMAP != 0 {
        let faces =
            if flags & ARRAY_LAYERED != 0 { depth > 0 && depth.is_multiple_of(6) } else { depth == 6 };
        width == height && faces && within(LAYERS)
    } else if flags & ARRAY_LAYERED != 0 {
        depth > 0 && within(LAYERS)
    } else {
        match (height, depth) {
            (0, 0) => within(ONE),
            (_, 0) => within(TWO),
            (0, _) => false,
            _ => within(THREE),
        }
    };
    let levels = description.levels.is_none_or(|levels| levels > 0);
    if width > 0 && shape && levels && matches!(channels, 1 | 2 | 4) {
        Ok(())
    } else {
        Err(CUDA_ERROR_INVALID_VALUE)
    }
}
