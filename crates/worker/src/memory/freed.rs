//! What becomes of freed allocations.
//!
//! ```text
//!   in use ──retire──▶ freed ──release──▶ no work uses it: its buffer goes, or its slab has the room again
//!      ▲                 │
//!      └─────revive──────┘ the next allocation of the same room takes it over
//! ```
//!
//! Freeing has two steps, so that an allocation freed in stream order is refused a second time at once and given back later.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::Result;

use super::heap::LARGE;
use super::{Buffer, Content, Heap, Small};

impl Heap {
    /// The program frees the allocation at `address`; gives its bytes.
    pub(crate) fn retire(&mut self, address: u64) -> Result<u64> {
        let at = self.holding(address).ok_or(CUDA_ERROR_INVALID_VALUE)?.0;
        match self.buffers.get_mut(&at).map(|buffer| &mut buffer.content) {
            Some(Content::Large { bytes, freed }) if at == address && !*freed => {
                *freed = true;
                let bytes = *bytes;
                self.note_freed(at);
                Ok(bytes)
            }
            Some(Content::Slab(slab)) => slab.retire(address - at),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// What an allocation takes up; one of the same room may take over a retired one's place.
    pub(crate) fn room(&self, bytes: u64) -> u64 {
        if bytes >= LARGE { bytes.next_multiple_of(self.granularity()) } else { Small::room(bytes) }
    }

    /// A retired allocation becomes a new one of `bytes`, of the same room.
    pub(crate) fn revive(&mut self, address: u64, bytes: u64) {
        let Some((at, _)) = self.holding(address) else { return };
        match self.buffers.get_mut(&at).map(|buffer| &mut buffer.content) {
            Some(Content::Large { bytes: held, freed }) => {
                (*held, *freed) = (bytes, false);
                self.note_used_again(at);
            }
            Some(Content::Slab(slab)) => slab.revive(address - at, bytes),
            None => {}
        }
    }

    /// Gives a retired allocation back. No work may use it any more.
    pub(crate) fn release(&mut self, address: u64) -> Result<()> {
        let Some((at, _)) = self.holding(address) else { return Ok(()) };
        if let Some(Buffer { content: Content::Slab(slab), .. }) = self.buffers.get_mut(&at) {
            slab.release(address - at);
            if !slab.is_empty() || self.empty_slabs() < 2 {
                return Ok(());
            }
        }
        self.remove(at)
    }

    fn empty_slabs(&self) -> usize {
        let empty = |at: &&u64| matches!(self.buffers.get(at), Some(Buffer { content: Content::Slab(slab), .. }) if slab.is_empty());
        self.slabs.iter().filter(empty).count()
    }

    pub(super) fn remove(&mut self, at: u64) -> Result<()> {
        if self.recycle(at) {
            return Ok(());
        }
        self.await_copies()?;
        let Some(buffer) = self.buffers.remove(&at) else { return Ok(()) };
        self.slabs.retain(|slab| *slab != at);
        let Some(memory) = buffer.memory else {
            self.forget_unbacked(at, buffer.bytes);
            self.give_addresses(at, buffer.bytes);
            return Ok(());
        };
        self.device.unmap(at, buffer.bytes)?;
        self.give_addresses(at, buffer.bytes);
        self.device.memory_release(memory)
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.drop_asides();
        while let Some(at) = self.buffers.keys().next().copied() {
            self.remove(at)?;
        }
        self.unmap_stale().map(drop)
    }
}
