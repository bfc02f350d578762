//! Device memory: which addresses are used, by what, and what lies behind them.
//!
//! Every address that a program sees is chosen here, inside [`PROGRAM_RANGE`], so that another worker can put the same
//! memory at the same place. A large allocation is one handle at an address of its own; small ones share the handle
//! of a slab. Memory that the program maps itself (`cuMemMap`) lies in the same range.

mod buffer;
mod heap;
mod pinned;
mod slab;
mod space;
mod virtual_memory;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use buffer::{Buffer, Content};
pub(crate) use heap::Heap;
pub(crate) use pinned::{Pinned, is_plain_name, map_pinned};
pub(crate) use slab::{Slab, Small};
pub(crate) use space::Space;
pub(crate) use virtual_memory::{Mapping, Physical, Reservation, VirtualMemory};

/// The lower half of the device range: devices are free to put module globals into the upper half.
pub(crate) const PROGRAM_RANGE: Range<u64> =
    rekindle_device::DEVICE_RANGE.start..rekindle_device::DEVICE_RANGE.start + (8 << 40);

/// Addresses are reserved from the driver in regions of this size.
pub(crate) const REGION: u64 = 1 << 40;

/// Hands out regions to the heaps of all devices.
#[derive(Debug)]
pub(crate) struct Regions(AtomicU64);

impl Regions {
    pub(crate) fn new() -> Regions {
        Regions(AtomicU64::new(PROGRAM_RANGE.start))
    }

    /// Takes as many adjoining regions as `bytes` need.
    pub(crate) fn take(&self, bytes: u64) -> Option<Range<u64>> {
        let bytes = bytes.checked_next_multiple_of(REGION)?;
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                next.checked_add(bytes).filter(|end| *end <= PROGRAM_RANGE.end)
            })
            .ok()
            .map(|start| start..start + bytes)
    }

    /// Notes that a restored heap uses these addresses.
    pub(crate) fn skip(&self, region: &Range<u64>) {
        self.0.fetch_max(region.end, Ordering::Relaxed);
    }
}
