//! What a program has freed of memory that came at a first use: others of its context get it at once, without a call of the
//! driver's.
//!
//! ```text
//!   freed, its work done ──▶ passed on: in the context's pool, still mapped here
//!                              ├─ allocated again here, and nobody has taken it ──▶ a buffer, as before
//!                              └─ taken, or not to be had again ──▶ stale: mapped, and nothing of the program's
//!                                                                     └─ at rest ──▶ unmapped, the addresses are free
//! ```
//!
//! The driver waits for all of the GPU's work when memory is unmapped, so that is put off until the program rests.

use std::sync::Arc;

use rekindle_device::{Access, Memory, Result};

use super::{Content, Heap};
use crate::demand::Demand;
use crate::shared::ClientDevice;

/// So much may be stale before it is unmapped although the program does not rest, and in so many places.
const STALE_PART: u64 = 8;
const STALE_PLACES: usize = 256;

/// Where memory of first uses comes from, and where it goes.
pub(crate) struct Recycler {
    view: Arc<ClientDevice>,
    /// What is mapped and nobody uses here: where, and its bytes.
    stale: Vec<(u64, u64)>,
    stale_bytes: u64,
}

impl Heap {
    /// From now on memory of first uses comes from the context's pool, and goes there.
    pub(crate) fn recycle_through(&mut self, view: Arc<ClientDevice>) {
        self.recycler = Some(Recycler { view, stale: Vec::new(), stale_bytes: 0 });
    }

    /// Memory for a first use, mapped. The device's context is current.
    pub(super) fn back_for_use(&mut self, at: u64, bytes: u64) -> Result<Memory> {
        let Some(recycler) = &self.recycler else { return self.back(at, bytes, None, Access::ReadWrite) };
        let memory = recycler.view.memory_for_use(bytes)?;
        let mapped = self.device.map(at, bytes, memory).and_then(|()| {
            self.device.protect(at, bytes, Access::ReadWrite).inspect_err(|_| {
                let _ = self.device.unmap(at, bytes);
            })
        });
        match mapped {
            Ok(()) => {
                self.note_demand(at, bytes as i64);
                Ok(memory)
            }
            Err(code) => {
                let _ = self.device.memory_release(memory);
                Err(code)
            }
        }
    }

    /// Has others take the memory of a freed allocation that no work uses any more. It stays the program's until somebody does.
    pub(crate) fn pass_on(&mut self, address: u64) {
        // What is being copied of it without the program's knowledge needs it as it is.
        if self.recycler.is_none() || self.is_being_copied() {
            return;
        }
        let Some(recycler) = &self.recycler else { return };
        let Some(buffer) = self.buffers.get_mut(&address) else { return };
        let is_freed = matches!(buffer.content, Content::Large { freed: true, .. });
        let is_others = buffer.shared || buffer.declared.is_some() || buffer.export.is_some();
        if let Some(memory) = buffer.memory.filter(|_| is_freed && !is_others && !buffer.is_passed_on) {
            buffer.is_passed_on = recycler.view.pass_on(address, buffer.bytes, memory);
        }
    }

    /// Whether others may have taken the memory of the allocation there.
    pub(crate) fn is_passed_on(&self, address: u64) -> bool {
        self.buffers.get(&address).is_some_and(|buffer| buffer.is_passed_on)
    }

    /// Has a freed allocation be the program's alone again; false if others have its memory by now, and there is no such
    /// allocation any more.
    pub(crate) fn take_back(&mut self, address: u64) -> bool {
        let Some(recycler) = &mut self.recycler else { return true };
        let Some(buffer) = self.buffers.get_mut(&address).filter(|buffer| buffer.is_passed_on) else {
            return true;
        };
        let Some(memory) = buffer.memory else { return true };
        if recycler.view.take_back(address, buffer.bytes, memory) {
            buffer.is_passed_on = false;
            return true;
        }
        recycler.add_stale(address, buffer.bytes);
        self.buffers.remove(&address);
        false
    }

    /// Has others get the memory of a buffer that is to go, and leaves it mapped until the program rests; false if that cannot
    /// be, and it is to go at once.
    pub(super) fn recycle(&mut self, at: u64) -> bool {
        self.pass_on(at);
        let limit = self.device.info().total_memory / STALE_PART;
        let Some(recycler) = &mut self.recycler else { return false };
        let Some(buffer) = self.buffers.get(&at).filter(|buffer| buffer.is_passed_on) else { return false };
        recycler.add_stale(at, buffer.bytes);
        self.buffers.remove(&at);
        if (recycler.stale_bytes > limit || recycler.stale.len() > STALE_PLACES)
            && let Err(code) = self.unmap_stale()
        {
            log::warn!("addresses that nobody needs stay in use: {code}");
        }
        true
    }

    /// Unmaps what is not the program's any more: how many bytes that was. The device's context is current.
    pub(crate) fn unmap_stale(&mut self) -> Result<u64> {
        let Some(recycler) = &mut self.recycler else { return Ok(0) };
        let stale = std::mem::take(&mut recycler.stale);
        let total = std::mem::take(&mut recycler.stale_bytes);
        let view = recycler.view.clone();
        // What cannot be unmapped keeps its addresses, and the others do not wait for it.
        let mut unmapped = Ok(total);
        for (at, bytes) in stale {
            match view.unmap_passed_on(at, bytes) {
                Ok(()) => self.give_addresses(at, bytes),
                Err(code) => unmapped = Err(code),
            }
        }
        unmapped
    }

    /// The program has freed the large allocation there.
    pub(super) fn note_freed(&self, at: u64) {
        if let Some(buffer) = self.buffers.get(&at).filter(|buffer| buffer.is_backed()) {
            self.note_demand(at, -(buffer.bytes as i64));
        }
    }

    /// The freed allocation there, which has memory, is another one now.
    pub(super) fn note_used_again(&self, at: u64) {
        if let Some(buffer) = self.buffers.get(&at).filter(|buffer| buffer.is_backed()) {
            self.note_demand(at, buffer.bytes as i64);
        }
    }

    fn note_demand(&self, at: u64, bytes: i64) {
        if let Some(demand) = self.demand() {
            demand.note(at, bytes);
        }
    }

    /// What the program's requests need of memory at first uses; none where memory comes at once.
    #[inline]
    pub(crate) fn demand(&self) -> Option<&Demand> {
        Some(&self.recycler.as_ref()?.view.recycling()?.demand)
    }
}

impl Recycler {
    fn add_stale(&mut self, at: u64, bytes: u64) {
        self.stale.push((at, bytes));
        self.stale_bytes += bytes;
    }
}
