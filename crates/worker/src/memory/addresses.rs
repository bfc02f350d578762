//! The addresses of one device: regions that are reserved from the driver, and what is taken of them.

use std::ops::Range;

use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_device::Result;

use super::Heap;

impl Heap {
    pub(crate) fn reserved(&self) -> &[Range<u64>] {
        &self.reserved
    }

    /// Takes addresses that nothing is mapped at, followed by a gap that catches overruns.
    pub(crate) fn take_addresses(&mut self, bytes: u64, alignment: u64, hint: u64) -> Result<u64> {
        let with_gap = bytes.checked_add(self.granularity).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        if hint != 0 && hint.is_multiple_of(alignment) && self.space.take_at(hint, with_gap) {
            return Ok(hint);
        }
        if let Some(at) = self.space.take(with_gap, alignment) {
            return Ok(at);
        }
        let needed = with_gap.checked_add(alignment).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let region = self.regions.take(needed).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.reserve(region)?;
        self.space.take(with_gap, alignment).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    pub(crate) fn give_addresses(&mut self, at: u64, bytes: u64) {
        self.space.give(at, bytes + self.granularity);
    }

    /// Takes these addresses and the gap after them, as an image has them.
    pub(crate) fn take_addresses_at(&mut self, at: u64, bytes: u64) -> bool {
        bytes.checked_add(self.granularity).is_some_and(|bytes| self.space.take_at(at, bytes))
    }

    /// Reserves a region from the driver.
    pub(crate) fn reserve(&mut self, region: Range<u64>) -> Result<()> {
        self.device.reserve(region.start, region.end - region.start)?;
        self.regions.skip(&region);
        self.space.give(region.start, region.end - region.start);
        self.reserved.push(region);
        Ok(())
    }

    /// Reserves a region that no memory of the program will lie in.
    pub(crate) fn reserve_apart(&mut self) -> Result<Range<u64>> {
        let region = self.regions.take(1).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.device.reserve(region.start, region.end - region.start)?;
        Ok(region)
    }

    /// Takes addresses for a buffer of so many bytes that gets its memory later: where, and how many bytes that is to have.
    pub(crate) fn take_room(&mut self, bytes: u64) -> Result<(u64, u64)> {
        let room = bytes.checked_next_multiple_of(self.granularity).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok((self.take_addresses(room, self.granularity, 0)?, room))
    }
}
