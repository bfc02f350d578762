//! What calls ask of a stream or a graph, checked: shapes and places before anything is queued.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{
    Array, ArrayCopy, Copy3D, CopyEnd, Function, Launch, MemorySet, Result, ValueOperation,
};

use crate::device::EmulatedDevice;
use crate::space::AddressKind;
use crate::work::{Op, copy_engine};

/// `CU_STREAM_WAIT_VALUE_FLUSH`: there is nothing to flush here.
const FLUSH: u32 = 1 << 30;

impl EmulatedDevice {
    fn place(&self, address: u64, bytes: u64) -> Result<AddressKind> {
        self.space.place(address, bytes).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub fn launch_op(&self, function: Function, launch: &Launch, parameters: &[u8]) -> Result<Op> {
        let kernel = self.kernel(function)?;
        kernel.check(launch, parameters, self.multiprocessors())?;
        Ok(Op::Kernel { kernel, launch: launch.clone(), parameters: parameters.into(), units: 0 })
    }

    /// Nothing where there are no bytes to copy.
    pub fn copy_op(&self, copy: &Copy3D) -> Result<Option<Op>> {
        let shape = [copy.width, copy.height, copy.depth];
        if shape.contains(&0) {
            return Ok(None);
        }
        let to = self.place(copy.to, extent(shape, copy.to_pitch, copy.to_slice)?)?;
        let from = self.place(copy.from, extent(shape, copy.from_pitch, copy.from_slice)?)?;
        Ok(Some(Op::Copy { copy: *copy, engine: copy_engine(to, from), _arrays: Vec::new() }))
    }

    /// As [`EmulatedDevice::copy_op`], from or to arrays.
    pub fn array_copy_op(&self, copy: &ArrayCopy<Array>) -> Result<Option<Op>> {
        let shape = [copy.width, copy.height, copy.depth];
        if shape.contains(&0) {
            return Ok(None);
        }
        let mut arrays = Vec::new();
        let mut end = |end: &CopyEnd<Array>| match end {
            CopyEnd::Linear { address, pitch, slice } => {
                let place = self.place(*address, extent(shape, *pitch, *slice)?)?;
                Ok((*address, *pitch, *slice, place))
            }
            CopyEnd::Array { at, x, y, z } => {
                let (array, level) = self.arrays.level(at)?;
                let [row, rows, slices] = array.description.extent(level);
                let mut sides = [(*x, row), (*y, rows), (*z, slices)].into_iter().zip(shape);
                if !sides.all(|((at, most), size)| at.checked_add(size).is_some_and(|end| end <= most)) {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                let image = array.image(level);
                let address = image.address + z * image.slice + y * image.pitch + x;
                arrays.push(array.storage);
                Ok((address, image.pitch, image.slice, AddressKind::Device))
            }
        };
        let (to, to_pitch, to_slice, to_place) = end(&copy.to)?;
        let (from, from_pitch, from_slice, from_place) = end(&copy.from)?;
        let [width, height, depth] = shape;
        let copy = Copy3D { to, to_pitch, to_slice, from, from_pitch, from_slice, width, height, depth };
        Ok(Some(Op::Copy { copy, engine: copy_engine(to_place, from_place), _arrays: arrays }))
    }

    pub fn set_op(&self, set: &MemorySet) -> Result<Option<Op>> {
        let element = u64::from(set.element);
        let aligned = set.address.is_multiple_of(element.max(1))
            && (set.height <= 1 || set.pitch.is_multiple_of(element.max(1)));
        if !matches!(set.element, 1 | 2 | 4) || !aligned {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if set.width == 0 || set.height == 0 {
            return Ok(None);
        }
        let row = set.width.checked_mul(element).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.place(set.address, extent([row, set.height, 1], set.pitch, 0)?)?;
        Ok(Some(Op::Set(*set)))
    }

    pub fn wait_op(&self, address: u64, value: u64, width: u32, flags: u32) -> Result<Op> {
        self.check_value(address, width)?;
        if flags & !(FLUSH | 3) != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Op::WaitValue { address, value, width, condition: flags & 3 })
    }

    pub fn write_op(&self, address: u64, value: u64, width: u32, flags: u32) -> Result<Op> {
        self.check_value(address, width)?;
        if flags > 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Op::WriteValue { address, value, width })
    }

    /// Nothing for flushes and barriers: every operation is visible to the next one.
    pub fn value_op(&self, operation: ValueOperation) -> Result<Option<Op>> {
        match operation {
            ValueOperation::Wait { address, value, width, flags } => {
                self.wait_op(address, value, width, flags).map(Some)
            }
            ValueOperation::Write { address, value, width, flags } => {
                self.write_op(address, value, width, flags).map(Some)
            }
            ValueOperation::Flush { .. } | ValueOperation::Barrier { .. } => Ok(None),
        }
    }

    fn check_value(&self, address: u64, width: u32) -> Result<()> {
        if !matches!(width, 4 | 8) || !address.is_multiple_of(u64::from(width)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.place(address, u64::from(width)).map(drop)
    }
}

/// Bytes from the first to the last of a strided shape (bytes, rows, slices).
fn extent([width, height, depth]: [u64; 3], pitch: u64, slice: u64) -> Result<u64> {
    let rows = (height - 1).checked_mul(pitch);
    let slices = (depth - 1).checked_mul(slice);
    let whole = rows.zip(slices).and_then(|(rows, slices)| rows.checked_add(slices)?.checked_add(width));
    let overlaps = height > 1 && pitch < width;
    whole.filter(|_| !overlaps).ok_or(CUDA_ERROR_INVALID_VALUE)
}
