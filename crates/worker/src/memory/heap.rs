//! The allocations of one device.
//!
//! Freeing has two steps, so that an allocation freed in stream order is refused a second time at once and given back
//! later: [`Heap::retire`], then [`Heap::release`] (or [`Heap::revive`], when the next allocation takes it over).

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::{Access, Device, Event, Memory, Result, Stream};

use super::aside::Aside;
use super::recycling::Recycler;
use super::{Buffer, Content, Hold, Regions, Slab, Small, Space, Unbacked};
use crate::ipc::Export;

/// Allocations of at least this size get a handle of their own.
const LARGE: u64 = 1 << 20;
const LARGEST_SLAB: u64 = 32 << 20;

pub(crate) struct Heap {
    pub(super) device: Arc<dyn Device>,
    granularity: u64,
    regions: Arc<Regions>,
    reserved: Vec<Range<u64>>,
    space: Space,
    pub(super) buffers: BTreeMap<u64, Buffer>,
    pub(super) slabs: Vec<u64>,
    /// What is mapped for buffers to come, by where.
    pub(super) aside: BTreeMap<u64, Aside>,
    /// Which allocations have no memory yet, where it comes at the first use.
    pub(super) unbacked: Option<Unbacked>,
    /// Where memory of first uses comes from and goes to.
    pub(super) recycler: Option<Recycler>,
    /// Behind what is being copied of the program's memory without its knowledge.
    pub(super) copied: Option<Event>,
}

impl Heap {
    pub(crate) fn new(device: Arc<dyn Device>, regions: Arc<Regions>) -> Heap {
        Heap {
            granularity: device.granularity().max(1),
            device,
            regions,
            reserved: Vec::new(),
            space: Space::default(),
            buffers: BTreeMap::new(),
            slabs: Vec::new(),
            aside: BTreeMap::new(),
            unbacked: None,
            recycler: None,
            copied: None,
        }
    }

    /// No memory goes before this has happened.
    pub(crate) fn note_copy(&mut self, event: Event) {
        if let Some(before) = self.copied.replace(event) {
            let _ = self.device.event_destroy(before);
        }
    }

    /// Waits for the copies that the program does not know of. The device's context is current.
    pub(crate) fn await_copies(&mut self) -> Result<()> {
        let Some(event) = self.copied.take() else { return Ok(()) };
        let waited = self.device.event_synchronize(event);
        let _ = self.device.event_destroy(event);
        waited
    }

    pub(crate) fn granularity(&self) -> u64 {
        self.granularity
    }

    pub(crate) fn buffers(&self) -> &BTreeMap<u64, Buffer> {
        &self.buffers
    }

    pub(crate) fn reserved(&self) -> &[Range<u64>] {
        &self.reserved
    }

    /// Bytes of all handles, but for those that others may take.
    pub(crate) fn bytes(&self) -> u64 {
        let held = self.buffers.values().filter(|buffer| buffer.is_backed() && !buffer.is_passed_on);
        held.map(|buffer| buffer.bytes).sum()
    }

    /// Bytes of those that are shared.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.buffers.values().filter(|buffer| buffer.shared).map(|buffer| buffer.bytes).sum()
    }

    /// Bytes of declared data whose memory other programs have made.
    pub(crate) fn others_bytes(&self) -> u64 {
        let others = self.buffers.values().filter(|buffer| buffer.declared == Some(Hold::Others));
        others.map(|buffer| buffer.bytes).sum()
    }

    /// Where shared buffers lie that one of these ranges meets.
    pub(crate) fn shared_in(&self, ranges: &[Range<u64>]) -> Vec<u64> {
        let meets =
            |at: u64, bytes: u64| ranges.iter().any(|range| range.start < at + bytes && at < range.end);
        let shared = self.buffers.iter().filter(|(at, buffer)| buffer.shared && meets(**at, buffer.bytes));
        shared.map(|(at, _)| *at).collect()
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

    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if bytes >= LARGE {
            let whole = bytes.checked_next_multiple_of(self.granularity).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
            return self.begin(whole, Content::Large { bytes, freed: false });
        }
        for at in self.slabs.iter().rev() {
            if let Some(Buffer { content: Content::Slab(slab), .. }) = self.buffers.get_mut(at)
                && let Some(offset) = slab.allocate(bytes)
            {
                return Ok(at + offset);
            }
        }
        // What is backed whole at a first use is small.
        let doublings = if self.waits_for_uses() { 0 } else { self.slabs.len().min(8) };
        let size = (self.granularity << doublings).min(LARGEST_SLAB).max(self.granularity);
        let mut slab = Slab::new(size);
        let offset = slab.allocate(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let at = match self.begin(size, Content::Slab(slab)) {
            Err(CUDA_ERROR_OUT_OF_MEMORY) if size > self.granularity => {
                let mut slab = Slab::new(self.granularity);
                slab.allocate(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
                self.begin(self.granularity, Content::Slab(slab))?
            }
            other => other?,
        };
        Ok(at + offset)
    }

    /// Makes an allocation of so many bytes where it was before, in or as a buffer that lies there and is so long.
    pub(crate) fn allocate_at(&mut self, address: u64, bytes: u64, (at, length): (u64, u64)) -> Result<()> {
        let is_large = bytes >= LARGE;
        if !self.buffers.contains_key(&at) {
            let end = at.checked_add(length).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            while !self.reserved.iter().any(|region| region.start <= at && end < region.end) {
                let region = self.regions.take(length + self.granularity).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
                if region.start > at {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                self.reserve(region)?;
            }
            let content = match is_large {
                true => Content::Large { bytes, freed: false },
                false => Content::Slab(Slab::new(length)),
            };
            self.place(at, length, content, None)?;
            if is_large {
                return Ok(());
            }
        }
        let taken = match self.buffers.get_mut(&at).map(|buffer| &mut buffer.content) {
            Some(Content::Slab(slab)) => slab.allocate_at(address.wrapping_sub(at), bytes),
            _ => false,
        };
        if taken { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Puts a buffer where an image has it, on the memory that `from` is a descriptor of or on new memory.
    pub(crate) fn place(
        &mut self,
        at: u64,
        bytes: u64,
        content: Content,
        from: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        if !self.take_addresses_at(at, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.fill(at, bytes, content, from)
    }

    /// As [`Heap::place`], on new memory that is not mapped: the caller does that when its contents are there.
    pub(crate) fn place_unmapped(&mut self, at: u64, bytes: u64, content: Content) -> Result<Memory> {
        if !self.take_addresses_at(at, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let memory = self.device.memory_create(bytes).inspect_err(|_| self.give_addresses(at, bytes))?;
        self.hold(at, bytes, memory, content);
        Ok(memory)
    }

    /// Takes addresses for a buffer of so many bytes that gets its memory later: where, and how many bytes that is to have.
    pub(crate) fn take_room(&mut self, bytes: u64) -> Result<(u64, u64)> {
        let room = bytes.checked_next_multiple_of(self.granularity).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok((self.take_addresses(room, self.granularity, 0)?, room))
    }

    /// Makes memory that is mapped in a window, where it is filled: that, and the memory.
    pub(crate) fn make_hidden(&mut self, room: u64) -> Result<(u64, Memory)> {
        let window = self.take_addresses(room, self.granularity, 0)?;
        let memory = self.back(window, room, None, Access::ReadWrite);
        Ok((window, memory.inspect_err(|_| self.give_addresses(window, room))?))
    }

    /// Makes a buffer, at addresses that were taken for it, of memory that was filled elsewhere. Without `write` it is
    /// declared data, which can only be read.
    pub(crate) fn show(
        &mut self,
        at: u64,
        (bytes, room): (u64, u64),
        memory: Memory,
        write: bool,
    ) -> Result<()> {
        self.device.map(at, room, memory)?;
        let access = if write { Access::ReadWrite } else { Access::Read };
        self.device.protect(at, room, access).inspect_err(|_| {
            let _ = self.device.unmap(at, room);
        })?;
        self.hold(at, room, memory, Content::Large { bytes, freed: false });
        self.note_declared(at, (!write).then_some(Hold::Own));
        Ok(())
    }

    /// Makes a buffer of declared data, at addresses that were taken for it, on another program's memory.
    pub(crate) fn show_declared(
        &mut self,
        at: u64,
        (bytes, room): (u64, u64),
        from: BorrowedFd<'_>,
    ) -> Result<()> {
        let memory = self.back(at, room, Some(from), Access::Read)?;
        self.hold(at, room, memory, Content::Large { bytes, freed: false });
        self.note_declared(at, Some(Hold::Others));
        Ok(())
    }

    /// As [`Heap::place`], of declared data on memory that holds it.
    pub(crate) fn place_declared(&mut self, at: u64, sizes: (u64, u64), from: BorrowedFd<'_>) -> Result<()> {
        if !self.take_addresses_at(at, sizes.1) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.show_declared(at, sizes, from).inspect_err(|_| self.give_addresses(at, sizes.1))
    }

    /// A buffer that is filled is declared data from now on.
    pub(crate) fn declare(&mut self, at: u64) -> Result<()> {
        let buffer = self.buffers.get(&at).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.device.protect(at, buffer.bytes, Access::Read)?;
        self.note_declared(at, Some(Hold::Own));
        Ok(())
    }

    pub(crate) fn note_declared(&mut self, at: u64, hold: Option<Hold>) {
        if let Some(buffer) = self.buffers.get_mut(&at) {
            buffer.declared = hold;
        }
    }

    /// A descriptor of the memory of a buffer, and its bytes.
    pub(crate) fn descriptor(&self, at: u64) -> Result<(OwnedFd, u64)> {
        let buffer = self.buffers.get(&at).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let memory = buffer.memory.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok((self.device.memory_export(memory)?, buffer.bytes))
    }

    /// Gives memory back that was mapped in a window, and the window.
    pub(crate) fn remove_hidden(&mut self, window: u64, room: u64, memory: Memory) {
        match self.device.unmap(window, room) {
            Ok(()) => self.give_addresses(window, room),
            Err(code) => log::warn!("addresses that nobody needs any more stay in use: {code}"),
        }
        if let Err(code) = self.device.memory_release(memory) {
            log::warn!("{room} bytes that nobody needs any more stay in use: {code}");
        }
    }

    /// Puts a buffer where an image has it, on memory that others have mapped too: it can only be read.
    pub(crate) fn place_shared(
        &mut self,
        at: u64,
        bytes: u64,
        content: Content,
        from: BorrowedFd<'_>,
    ) -> Result<()> {
        if !self.take_addresses_at(at, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.fill_shared(at, bytes, content, from)
    }

    fn fill_shared(&mut self, at: u64, bytes: u64, content: Content, from: BorrowedFd<'_>) -> Result<()> {
        match self.back(at, bytes, Some(from), Access::Read) {
            Ok(memory) => {
                self.hold(at, bytes, memory, content);
                if let Some(buffer) = self.buffers.get_mut(&at) {
                    buffer.shared = true;
                }
                Ok(())
            }
            Err(code) => {
                self.give_addresses(at, bytes);
                Err(code)
            }
        }
    }

    /// Makes a buffer on memory of its own, however small it is.
    pub(crate) fn add_own(&mut self, bytes: u64) -> Result<u64> {
        let whole = bytes.checked_next_multiple_of(self.granularity).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.add(whole, Content::Large { bytes, freed: false })
    }

    /// Makes a buffer on memory that others have too: it can only be read.
    pub(crate) fn add_shared(&mut self, bytes: u64, room: u64, from: BorrowedFd<'_>) -> Result<u64> {
        let at = self.take_addresses(room, self.granularity, 0)?;
        self.fill_shared(at, room, Content::Large { bytes, freed: false }, from)?;
        Ok(at)
    }

    /// Has a buffer only be read from now on; its memory, for others.
    pub(crate) fn share(&mut self, at: u64) -> Result<OwnedFd> {
        let buffer = self.buffers.get_mut(&at).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let memory = buffer.memory.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.device.protect(at, buffer.bytes, Access::Read)?;
        buffer.shared = true;
        self.device.memory_export(memory)
    }

    /// Gives a shared buffer memory of its own with the same contents. The device is idle, and its context current.
    pub(crate) fn make_private(&mut self, at: u64) -> Result<()> {
        let Some(buffer) = self.buffers.get(&at).filter(|buffer| buffer.shared) else { return Ok(()) };
        let (bytes, Some(shared)) = (buffer.bytes, buffer.memory) else { return Ok(()) };
        self.await_copies()?;
        let window = self.take_addresses(bytes, self.granularity, 0)?;
        let copied = self.back(window, bytes, None, Access::ReadWrite).and_then(|memory| {
            let filled = self
                .device
                .copy(window, at, bytes, Stream::LEGACY)
                .and_then(|()| self.device.stream_synchronize(Stream::LEGACY));
            let closed = self.device.unmap(window, bytes);
            filled.and(closed).map(|()| memory).inspect_err(|_| {
                let _ = self.device.memory_release(memory);
            })
        });
        self.give_addresses(window, bytes);
        let memory = copied?;
        self.device.unmap(at, bytes)?;
        self.device.map(at, bytes, memory)?;
        self.device.protect(at, bytes, Access::ReadWrite)?;
        if let Some(buffer) = self.buffers.get_mut(&at) {
            (buffer.memory, buffer.shared) = (Some(memory), false);
        }
        self.device.memory_release(shared)
    }

    /// Has the memory of the buffer that holds an address be had by others, in this way unless it is already: where the
    /// buffer starts, and how it is had. Memory that is a cache's, or another program's, is not.
    pub(crate) fn offer(
        &mut self,
        address: u64,
        way: impl FnOnce(OwnedFd, u64) -> Arc<Export>,
    ) -> Result<(u64, Arc<Export>)> {
        let (at, buffer) = self.holding(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let export = match &buffer.export {
            Some(export) => export.clone(),
            None if buffer.shared || buffer.declared.is_some() => return Err(CUDA_ERROR_INVALID_VALUE),
            None => {
                let memory = buffer.memory.ok_or(CUDA_ERROR_INVALID_VALUE)?;
                way(self.device.memory_export(memory)?, buffer.bytes)
            }
        };
        if let Some(buffer) = self.buffers.get_mut(&at) {
            buffer.export = Some(export.clone());
        }
        Ok((at, export))
    }

    /// Maps another process's memory, which is no buffer here: at addresses that were taken for it, or at new ones.
    pub(crate) fn map_other(
        &mut self,
        at: Option<u64>,
        bytes: u64,
        from: BorrowedFd<'_>,
    ) -> Result<(u64, Memory)> {
        let address = match at {
            Some(at) => at,
            None => self.take_addresses(bytes, self.granularity, 0)?,
        };
        let mapped = self.back(address, bytes, Some(from), Access::ReadWrite);
        let memory = mapped.inspect_err(|_| {
            if at.is_none() {
                self.give_addresses(address, bytes);
            }
        })?;
        Ok((address, memory))
    }

    /// Gives back what [`Heap::map_other`] has mapped. No work may use it any more.
    pub(crate) fn unmap_other(&mut self, at: u64, bytes: u64, memory: Memory) -> Result<()> {
        self.device.unmap(at, bytes)?;
        self.give_addresses(at, bytes);
        self.device.memory_release(memory)
    }

    /// Makes a buffer of what [`Heap::map_other`] has mapped, on memory of its own with the same contents. The device is
    /// idle, and its context current.
    pub(crate) fn adopt(&mut self, at: u64, bytes: u64, memory: Memory) -> Result<()> {
        let content = Content::Large { bytes, freed: false };
        self.buffers.insert(
            at,
            Buffer {
                bytes,
                memory: Some(memory),
                content,
                shared: true,
                declared: None,
                export: None,
                is_passed_on: false,
            },
        );
        self.make_private(at).inspect_err(|_| {
            if self.buffers.get(&at).is_some_and(|buffer| buffer.memory == Some(memory)) {
                self.buffers.remove(&at);
            }
        })
    }

    pub(super) fn add(&mut self, bytes: u64, content: Content) -> Result<u64> {
        let at = self.take_addresses(bytes, self.granularity, 0)?;
        self.fill(at, bytes, content, None)?;
        Ok(at)
    }

    fn fill(&mut self, at: u64, bytes: u64, content: Content, from: Option<BorrowedFd<'_>>) -> Result<()> {
        match self.back(at, bytes, from, Access::ReadWrite) {
            Ok(memory) => {
                self.hold(at, bytes, memory, content);
                Ok(())
            }
            Err(code) => {
                self.give_addresses(at, bytes);
                Err(code)
            }
        }
    }

    fn hold(&mut self, at: u64, bytes: u64, memory: Memory, content: Content) {
        self.note(at, bytes, Some(memory), content);
    }

    pub(super) fn note(&mut self, at: u64, bytes: u64, memory: Option<Memory>, content: Content) {
        if matches!(content, Content::Slab(_)) {
            self.slabs.push(at);
        }
        self.buffers.insert(
            at,
            Buffer {
                bytes,
                memory,
                content,
                shared: false,
                declared: None,
                export: None,
                is_passed_on: false,
            },
        );
    }

    /// Makes memory, or takes what there is, and maps it.
    pub(super) fn back(
        &self,
        at: u64,
        bytes: u64,
        from: Option<BorrowedFd<'_>>,
        access: Access,
    ) -> Result<Memory> {
        let memory = match from {
            Some(descriptor) => self.device.memory_import(descriptor, bytes)?,
            None => self.device.memory_create(bytes)?,
        };
        let mapped = self.device.map(at, bytes, memory).and_then(|()| {
            self.device.protect(at, bytes, access).inspect_err(|_| {
                let _ = self.device.unmap(at, bytes);
            })
        });
        match mapped {
            Ok(()) => Ok(memory),
            Err(code) => {
                let _ = self.device.memory_release(memory);
                Err(code)
            }
        }
    }

    fn holding(&self, address: u64) -> Option<(u64, &Buffer)> {
        let (at, buffer) = self.buffers.range(..=address).next_back()?;
        (address - at < buffer.bytes).then_some((*at, buffer))
    }

    /// The allocation that holds an address: where it starts, and its bytes.
    pub(crate) fn range(&self, address: u64) -> Option<(u64, u64)> {
        let (at, buffer) = self.holding(address)?;
        match &buffer.content {
            Content::Large { bytes, freed } => (!freed && address - at < *bytes).then_some((at, *bytes)),
            Content::Slab(slab) => slab.holding(address - at).map(|(offset, bytes)| (at + offset, bytes)),
        }
    }

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
        if bytes >= LARGE { bytes.next_multiple_of(self.granularity) } else { Small::room(bytes) }
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
