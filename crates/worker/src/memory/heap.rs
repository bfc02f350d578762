//! The allocations of one device, and the memory that is made for them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::{Access, Device, Event, Memory, Result};

use super::aside::Aside;
use super::recycling::Recycler;
use super::{Buffer, Content, Hold, Regions, Slab, Space, Unbacked};
use crate::pressure::Pressure;

/// Allocations of at least this size get a handle of their own.
pub(super) const LARGE: u64 = 1 << 20;
const LARGEST_SLAB: u64 = 32 << 20;

pub(crate) struct Heap {
    pub(super) device: Arc<dyn Device>,
    pub(super) granularity: u64,
    pub(super) regions: Arc<Regions>,
    pub(super) reserved: Vec<Range<u64>>,
    pub(super) space: Space,
    pub(super) buffers: BTreeMap<u64, Buffer>,
    pub(super) slabs: Vec<u64>,
    /// What is mapped for buffers to come, by where.
    pub(super) aside: BTreeMap<u64, Aside>,
    /// Which allocations have no memory yet, where it comes at the first use.
    pub(super) unbacked: Option<Unbacked>,
    /// Where memory of first uses comes from and goes to.
    pub(super) recycler: Option<Recycler>,
    /// Who gives way where memory is lacking.
    pressure: Option<Arc<Pressure>>,
    /// Behind what is being copied of the program's memory without its knowledge.
    pub(super) copied: Option<Event>,
}

impl Heap {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        regions: Arc<Regions>,
        pressure: Option<Arc<Pressure>>,
    ) -> Heap {
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
            pressure,
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

    /// Whether such copies are under way.
    pub(super) fn is_being_copied(&mut self) -> bool {
        let Some(event) = self.copied else { return false };
        if let Ok(true) = self.device.event_query(event) {
            self.copied = None;
            let _ = self.device.event_destroy(event);
        }
        self.copied.is_some()
    }

    pub(crate) fn granularity(&self) -> u64 {
        self.granularity
    }

    pub(crate) fn buffers(&self) -> &BTreeMap<u64, Buffer> {
        &self.buffers
    }

    /// Bytes of all handles, but for those that others may take.
    pub(crate) fn bytes(&self) -> u64 {
        let held = self.buffers.values().filter(|buffer| buffer.is_backed() && !buffer.is_passed_on);
        held.map(|buffer| buffer.bytes).sum()
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
        let memory = self.make(bytes).inspect_err(|_| self.give_addresses(at, bytes))?;
        self.hold(at, bytes, memory, content);
        Ok(memory)
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

    /// Makes a buffer on memory of its own, however small it is.
    pub(crate) fn add_own(&mut self, bytes: u64) -> Result<u64> {
        let whole = bytes.checked_next_multiple_of(self.granularity).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.add(whole, Content::Large { bytes, freed: false })
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

    pub(super) fn hold(&mut self, at: u64, bytes: u64, memory: Memory, content: Content) {
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

    /// Makes memory; pools of other workers give way to it.
    fn make(&self, bytes: u64) -> Result<Memory> {
        loop {
            match self.device.memory_create(bytes) {
                Err(CUDA_ERROR_OUT_OF_MEMORY)
                    if self.pressure.as_ref().is_some_and(|pressure| pressure.ask()) => {}
                made => return made,
            }
        }
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
            None => self.make(bytes)?,
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

    pub(super) fn holding(&self, address: u64) -> Option<(u64, &Buffer)> {
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
}
