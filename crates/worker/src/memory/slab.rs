//! A handle that many small allocations share.

use std::collections::BTreeMap;

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::Result;
use serde::{Deserialize, Serialize};

use super::Space;

/// Small allocations start at multiples of this.
const ALIGNMENT: u64 = 512;

/// A small allocation, by its offset in its slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Small {
    /// As the program asked.
    pub bytes: u64,
    /// The program has freed it, and its stream has not come that far yet.
    pub freed: bool,
}

impl Small {
    /// Bytes that an allocation takes up.
    pub(crate) fn room(bytes: u64) -> u64 {
        bytes.max(1).next_multiple_of(ALIGNMENT)
    }
}

#[derive(Debug)]
pub(crate) struct Slab {
    used: BTreeMap<u64, Small>,
    space: Space,
}

impl Slab {
    pub(crate) fn new(bytes: u64) -> Slab {
        Slab { used: BTreeMap::new(), space: Space::new(0, bytes) }
    }

    /// A slab of `bytes` with these allocations in it, as an image has them.
    pub(crate) fn with(bytes: u64, used: BTreeMap<u64, Small>) -> Option<Slab> {
        let mut space = Space::new(0, bytes);
        let fits = used.iter().all(|(at, small)| space.take_at(*at, Small::room(small.bytes)));
        fits.then_some(Slab { used, space })
    }

    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let at = self.space.take(Small::room(bytes), ALIGNMENT)?;
        self.used.insert(at, Small { bytes, freed: false });
        Some(at)
    }

    /// Makes an allocation at this offset; false if that is not free.
    pub(crate) fn allocate_at(&mut self, offset: u64, bytes: u64) -> bool {
        let taken = self.space.take_at(offset, Small::room(bytes));
        if taken {
            self.used.insert(offset, Small { bytes, freed: false });
        }
        taken
    }

    /// Marks the allocation at `offset` as freed by the program.
    pub(crate) fn retire(&mut self, offset: u64) -> Result<u64> {
        match self.used.get_mut(&offset) {
            Some(small) if !small.freed => {
                small.freed = true;
                Ok(small.bytes)
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Takes the mark of [`Slab::retire`] away: the allocation is used again, for `bytes` of the same room.
    pub(crate) fn revive(&mut self, offset: u64, bytes: u64) {
        if let Some(small) = self.used.get_mut(&offset) {
            *small = Small { bytes, freed: false };
        }
    }

    /// Gives a retired allocation's room back.
    pub(crate) fn release(&mut self, offset: u64) {
        if let Some(small) = self.used.remove(&offset) {
            self.space.give(offset, Small::room(small.bytes));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    pub(crate) fn used(&self) -> &BTreeMap<u64, Small> {
        &self.used
    }

    /// The allocation that holds `offset`: where it starts, and its bytes.
    pub(crate) fn holding(&self, offset: u64) -> Option<(u64, u64)> {
        let (at, small) = self.used.range(..=offset).next_back()?;
        (!small.freed && offset - at < small.bytes.max(1)).then_some((*at, small.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_freed_once() {
        let mut slab = Slab::new(4096);
        let first = slab.allocate(700).unwrap();
        let second = slab.allocate(1).unwrap();
        assert_eq!((first, second), (0, 1024));
        assert_eq!(slab.holding(699), Some((0, 700)));
        assert_eq!(slab.holding(701), None);
        assert_eq!(slab.retire(512), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(slab.retire(0), Ok(700));
        assert_eq!(slab.retire(0), Err(CUDA_ERROR_INVALID_VALUE));
        slab.release(0);
        assert!(!slab.is_empty());
        assert!(slab.allocate(4096).is_none());
        assert!(slab.allocate_at(0, 700) && !slab.allocate_at(512, 1) && !slab.allocate_at(1024, 1));
        slab.release(0);
        let copy = Slab::with(4096, slab.used().clone()).unwrap();
        assert_eq!(copy.space.free_bytes(), slab.space.free_bytes());
        assert!(Slab::with(1024, slab.used().clone()).is_none());
    }
}
