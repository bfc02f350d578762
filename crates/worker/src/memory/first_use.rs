//! Memory that comes at the first use: an allocation has its addresses at once, and a handle when something names it.
//!
//! A buffer is backed whole. A kernel's arguments tell where it begins to use one, not how far; and a handle for each 2 MB
//! takes longer to map than one for all.

use std::collections::BTreeSet;
use std::ops::Range;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::Result;

use super::{Content, Heap};

/// What a heap has of buffers without memory.
#[derive(Debug, Default)]
pub(crate) struct Unbacked {
    /// Where they begin.
    at: BTreeSet<u64>,
    bytes: u64,
}

impl Heap {
    /// From now on allocations get their memory at their first use.
    pub(crate) fn wait_for_uses(&mut self) {
        self.unbacked.get_or_insert_default();
    }

    /// From now on they get it at once. Nothing is without it.
    pub(crate) fn wait_no_more(&mut self) {
        self.unbacked = None;
        self.recycler = None;
    }

    pub(crate) fn waits_for_uses(&self) -> bool {
        self.unbacked.is_some()
    }

    pub(crate) fn unbacked_bytes(&self) -> u64 {
        self.unbacked.as_ref().map_or(0, |unbacked| unbacked.bytes)
    }

    #[inline]
    pub(crate) fn has_unbacked(&self) -> bool {
        self.unbacked.as_ref().is_some_and(|unbacked| !unbacked.at.is_empty())
    }

    /// All addresses between the first and the last that has no memory yet.
    pub(crate) fn unbacked_span(&self) -> Option<Range<u64>> {
        let at = &self.unbacked.as_ref()?.at;
        let last = *at.last()?;
        Some(*at.first()?..last + self.buffers.get(&last)?.bytes)
    }

    /// The buffer without memory that holds this address.
    pub(crate) fn unbacked_at(&self, address: u64) -> Option<u64> {
        let at = *self.unbacked.as_ref()?.at.range(..=address).next_back()?;
        (address - at < self.buffers.get(&at)?.bytes).then_some(at)
    }

    /// Buffers without memory that this range meets.
    pub(crate) fn unbacked_in(&self, range: &Range<u64>) -> Vec<u64> {
        let Some(unbacked) = &self.unbacked else { return Vec::new() };
        let begin = self.unbacked_at(range.start).unwrap_or(range.start);
        if begin >= range.end { Vec::new() } else { unbacked.at.range(begin..range.end).copied().collect() }
    }

    /// Makes a buffer: with memory, or only with addresses where that comes at the first use.
    pub(super) fn begin(&mut self, bytes: u64, content: Content) -> Result<u64> {
        if !self.waits_for_uses() {
            return self.add(bytes, content);
        }
        let held = self.bytes().saturating_add(self.unbacked_bytes());
        if held.saturating_add(bytes) > self.device.info().total_memory {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let at = self.take_addresses(bytes, self.granularity(), 0)?;
        self.note_unbacked(at, bytes, content);
        Ok(at)
    }

    /// As [`Heap::place`], of a buffer that had no memory yet.
    pub(crate) fn place_unbacked(&mut self, at: u64, bytes: u64, content: Content) -> Result<()> {
        if !self.waits_for_uses() {
            return self.place(at, bytes, content, None);
        }
        if !self.take_addresses_at(at, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.note_unbacked(at, bytes, content);
        Ok(())
    }

    fn note_unbacked(&mut self, at: u64, bytes: u64, content: Content) {
        self.note(at, bytes, None, content);
        if let Some(unbacked) = &mut self.unbacked {
            unbacked.at.insert(at);
            unbacked.bytes += bytes;
        }
    }

    pub(super) fn forget_unbacked(&mut self, at: u64, bytes: u64) {
        if let Some(unbacked) = &mut self.unbacked
            && unbacked.at.remove(&at)
        {
            unbacked.bytes -= bytes;
        }
    }

    /// Gives the buffer that begins there memory, unless it has some. The device's context is current.
    pub(crate) fn back_now(&mut self, at: u64) -> Result<()> {
        let Some(buffer) = self.buffers.get(&at).filter(|buffer| !buffer.is_backed()) else { return Ok(()) };
        let bytes = buffer.bytes;
        let memory = self.back_for_use(at, bytes)?;
        self.forget_unbacked(at, bytes);
        if let Some(buffer) = self.buffers.get_mut(&at) {
            buffer.memory = Some(memory);
        }
        Ok(())
    }

    /// Gives the memory of slabs back that nothing lies in: how many bytes that was.
    pub(crate) fn give_empty_slabs(&mut self) -> Result<u64> {
        let is_empty = |at: &u64| {
            let content = self.buffers.get(at).map(|buffer| &buffer.content);
            matches!(content, Some(Content::Slab(slab)) if slab.is_empty())
        };
        let empty: Vec<u64> = self.slabs.iter().copied().filter(is_empty).collect();
        let before = self.bytes();
        empty.into_iter().try_for_each(|at| self.remove(at))?;
        Ok(before - self.bytes())
    }
}
