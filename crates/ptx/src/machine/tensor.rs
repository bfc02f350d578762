//! Copies of tiles between a tensor and shared memory, as a tensor map describes them.

use super::step::{Exec, StepError, Stop};
use super::warp::{Path, lanes};
use crate::tensor_map::{TENSOR_MAP_BYTES, TensorMap};
use crate::types::Space;

/// Of a tile in shared memory.
const TILE_ALIGNMENT: u64 = 16;

impl Exec<'_> {
    /// From the tensor, what lies outside of it as zeros; the mbarrier gets the bytes.
    pub fn tensor_load(
        &mut self,
        path: &Path,
        dimensions: u8,
        sources: &[u32],
        mask: u32,
    ) -> Result<(), Stop> {
        for lane in lanes(mask) {
            let of = |exec: &mut Self, at: usize| exec.row(path, sources[at])[lane];
            let (map, to, barrier) = (of(self, 0), of(self, 1), of(self, 2));
            let coordinates: Vec<i32> = (3..sources.len()).map(|at| of(self, at) as i32).collect();
            let mut load = || {
                let map = self.read_map(lane, map, dimensions)?;
                let bytes = self.tile(lane, &map, to, &coordinates, true)?;
                self.complete_bytes(lane, barrier, bytes)
            };
            load().map_err(|trouble| trouble.at(lane))?;
        }
        Ok(())
    }

    /// To the tensor, but for what lies outside of it.
    pub fn tensor_store(
        &mut self,
        path: &Path,
        dimensions: u8,
        sources: &[u32],
        mask: u32,
    ) -> Result<(), Stop> {
        for lane in lanes(mask) {
            let of = |exec: &mut Self, at: usize| exec.row(path, sources[at])[lane];
            let (map, from) = (of(self, 0), of(self, 1));
            let coordinates: Vec<i32> = (2..sources.len()).map(|at| of(self, at) as i32).collect();
            let mut store = || {
                let map = self.read_map(lane, map, dimensions)?;
                self.tile(lane, &map, from, &coordinates, false).map(drop)
            };
            store().map_err(|trouble| trouble.at(lane))?;
        }
        Ok(())
    }

    /// Writes a field of a map.
    pub fn tensor_map_replace(
        &mut self,
        path: &Path,
        (space, offset, bytes): (Space, u32, u8),
        sources: &[u32],
        mask: u32,
    ) -> Result<(), Stop> {
        for lane in lanes(mask) {
            let (map, value) = (self.row(path, sources[0])[lane], self.row(path, sources[1])[lane]);
            self.write(lane, space, map.wrapping_add(offset.into()), bytes, value)
                .map_err(|trouble| trouble.at(lane))?;
        }
        Ok(())
    }

    /// Copies a map; one lane does it for the warp.
    pub fn tensor_map_copy(
        &mut self,
        path: &Path,
        (to, from): (Space, Space),
        sources: &[u32],
        mask: u32,
    ) -> Result<(), Stop> {
        let Some(lane) = lanes(mask).next() else { return Ok(()) };
        let (target, source) = (self.row(path, sources[0])[lane], self.row(path, sources[1])[lane]);
        for at in (0..TENSOR_MAP_BYTES as u64).step_by(8) {
            let word = self.read(lane, from, source.wrapping_add(at), 8);
            let word = word.map_err(|trouble| trouble.at(lane))?;
            self.write(lane, to, target.wrapping_add(at), 8, word).map_err(|trouble| trouble.at(lane))?;
        }
        Ok(())
    }

    fn read_map(&mut self, lane: usize, address: u64, dimensions: u8) -> Result<TensorMap, StepError> {
        let mut bytes = [0; TENSOR_MAP_BYTES];
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            let found = self.read(lane, Space::Generic, address.wrapping_add(8 * at as u64), 8)?;
            word.copy_from_slice(&found.to_le_bytes());
        }
        let map = TensorMap::decode(&bytes).map_err(StepError::Illegal)?;
        if map.dimensions.len() != usize::from(dimensions) {
            let rank = map.dimensions.len();
            return Err(StepError::Illegal(format!(
                "a copy of {dimensions} dimensions was given a tensor map of {rank}"
            )));
        }
        Ok(map)
    }

    /// Copies one tile, and gives its bytes.
    fn tile(
        &mut self,
        lane: usize,
        map: &TensorMap,
        shared: u64,
        coordinates: &[i32],
        is_load: bool,
    ) -> Result<u64, StepError> {
        let alignment = TILE_ALIGNMENT.max(if map.swizzle > 0 { 128 } else { 0 });
        if !shared.is_multiple_of(alignment) {
            return Err(StepError::Misaligned { address: shared, align: alignment as u32 });
        }
        let width = map.element_bytes().unwrap_or(1);
        let counts = map.counts();
        let elements: u64 = counts.iter().product();
        for number in 0..elements {
            let tensor = place(map, &counts, coordinates, number, width);
            let place = swizzled(shared + number * width, map.swizzle);
            match (is_load, tensor) {
                (true, tensor) => {
                    let value = match tensor {
                        Some(address) => self.read(lane, Space::Global, address, width as u8)?,
                        None => 0,
                    };
                    let is_subnormal = value & 0x7f80_0000 == 0;
                    let value = if map.flushes() && is_subnormal { value & 0x8000_0000 } else { value };
                    self.write(lane, Space::Shared, place, width as u8, value)?;
                }
                (false, Some(address)) => {
                    let value = self.read(lane, Space::Shared, place, width as u8)?;
                    self.write(lane, Space::Global, address, width as u8, value)?;
                }
                (false, None) => {}
            }
        }
        Ok(elements * width)
    }
}

/// Where an element of a tile lies in the tensor; none outside of it.
fn place(map: &TensorMap, counts: &[u64], coordinates: &[i32], mut number: u64, width: u64) -> Option<u64> {
    let mut address = map.address;
    for (axis, count) in counts.iter().enumerate() {
        let step = if axis == 0 { 1 } else { i64::from(map.steps[axis]) };
        let at = i64::from(coordinates[axis]) + (number % count) as i64 * step;
        number /= count;
        let at = u64::try_from(at).ok().filter(|at| *at < map.dimensions[axis])?;
        let stride = if axis == 0 { width } else { map.strides[axis - 1] };
        address = address.wrapping_add(at.wrapping_mul(stride));
    }
    Some(address)
}

/// Where a byte lies that is swizzled: pieces of 16 bytes change places by the number of their row of 128.
fn swizzled(address: u64, swizzle: u8) -> u64 {
    let bits = (1u64 << swizzle) - 1;
    address ^ ((address >> 7 & bits) << 4)
}
