//! Device memory: which addresses are used, by what, and what lies behind them.
//!
//! Every address that a program sees is chosen here, inside [`PROGRAM_RANGE`] and the program's [`Slice`] if it has one, so that another worker can put the same
//! memory at the same place. A large allocation is one handle at an address of its own; small ones share the handle
//! of a slab. Memory that the program maps itself (`cuMemMap`) lies in the same range.

mod addresses;
mod aside;
mod buffer;
mod first_use;
mod freed;
mod heap;
mod others;
mod pinned;
mod recycling;
mod slab;
mod space;
mod virtual_memory;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_device::{PROGRAM_RANGE, Slice};

pub(crate) use buffer::{Buffer, Content, Hold};
pub(crate) use first_use::Unbacked;
pub(crate) use heap::Heap;
pub(crate) use pinned::{Pinned, is_plain_name, map_pinned};
pub(crate) use slab::{Slab, Small};
pub(crate) use space::Space;
pub(crate) use virtual_memory::{Mapping, Physical, Reservation, VirtualMemory};

/// Addresses are reserved from the driver in regions of this size.
pub(crate) const REGION: u64 = 1 << 40;
/// As [`REGION`], within a slice.
const REGION_OF_SLICE: u64 = 64 << 30;

/// Hands out regions to the heaps of all devices of one client.
#[derive(Debug)]
pub(crate) struct Regions(Mutex<FreeRegion>);

#[derive(Debug)]
struct FreeRegion {
    range: Range<u64>,
    region: u64,
    slice: Option<Slice>,
}

impl Regions {
    pub(crate) fn new() -> Regions {
        Regions(Mutex::new(FreeRegion { range: PROGRAM_RANGE, region: REGION, slice: None }))
    }

    /// Only addresses of this slice are handed out from now on.
    pub(crate) fn confine(&self, slice: Slice) {
        *self.left() = FreeRegion { range: slice.device(), region: REGION_OF_SLICE, slice: Some(slice) };
    }

    pub(crate) fn slice(&self) -> Option<Slice> {
        self.left().slice
    }

    /// Takes as many adjoining regions as `bytes` need.
    pub(crate) fn take(&self, bytes: u64) -> Option<Range<u64>> {
        let mut left = self.left();
        let bytes = bytes.checked_next_multiple_of(left.region)?;
        let start = left.range.start;
        let end = start.checked_add(bytes).filter(|end| *end <= left.range.end)?;
        left.range.start = end;
        Some(start..end)
    }

    /// Notes that a restored heap uses these addresses.
    pub(crate) fn skip(&self, region: &Range<u64>) {
        let mut left = self.left();
        left.range.start = left.range.start.max(region.end);
    }

    fn left(&self) -> MutexGuard<'_, FreeRegion> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
