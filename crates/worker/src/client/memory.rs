//! Allocation, freeing, and pinned host memory.

use rekindle_cuda::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY,
};
use rekindle_device::{DEVICE_RANGE, Result, Stream};
use rekindle_protocol::operation::{
    Answer, MemoryAllocateAsync, MemoryFree, MemoryFreeAsync, Origin, PinnedRegister, PinnedUnregister,
};

use super::Client;
use super::context::Freed;
use crate::image::Shadow;
use crate::memory::{Pinned, map_pinned};

impl Client {
    /// Free and total bytes; what waits to be used again counts as free, and what waits for its first use does not.
    pub(crate) fn memory_space(&mut self, device: usize) -> Result<(u64, u64)> {
        let (free, total) = self.on(device)?.memory_info()?;
        let context = self.context(device)?;
        let own = context.freed.iter().filter(|freed| !context.heap.is_passed_on(freed.address));
        let kept: u64 = own.map(|freed| freed.room).sum();
        let shadow = self.shadow.as_ref().map_or(0, |shadow| shadow.bytes_of(device));
        let shadow = shadow + self.copy_room(device);
        let unbacked = self.context(device)?.heap.unbacked_bytes();
        let pools = self.pool_bytes(device);
        let free = free.saturating_add(kept).saturating_add(shadow).saturating_add(pools).min(total);
        Ok((free.saturating_sub(unbacked), total))
    }

    /// Tries until there is memory for it, or nothing is left that could be given back.
    pub(crate) fn with_memory<T>(
        &mut self,
        device: usize,
        mut attempt: impl FnMut(&mut Client) -> Result<T>,
    ) -> Result<T> {
        loop {
            match attempt(self) {
                Err(CUDA_ERROR_OUT_OF_MEMORY)
                    if self.pools_give_way(device)
                        || self.trim(device, 0)? != 0
                        || self.copy_rooms_give_way()
                        || self.shadow_gives_way()
                        || self.arrays_give_way(device) => {}
                other => return other,
            }
        }
    }

    /// Bytes that lie ready for first uses in all workers of the GPU.
    fn pool_bytes(&self, device: usize) -> u64 {
        let Ok(context) = self.context(device) else { return 0 };
        match &context.gpu.view {
            Some(view) => view.pool_bytes() + view.pool_bytes_elsewhere(),
            None => context.gpu.pressure.as_ref().map_or(0, |pressure| pressure.elsewhere()),
        }
    }

    /// Has the GPU get what lies ready for first uses; false if that is nothing.
    fn pools_give_way(&self, device: usize) -> bool {
        let Ok(context) = self.context(device) else { return false };
        match &context.gpu.view {
            Some(view) => view.pool_gives_way(),
            None => context.gpu.pressure.as_ref().is_some_and(|pressure| pressure.ask()),
        }
    }

    /// Waits until a shadow is drained, and gives its memory back; false if it has none.
    pub(crate) fn shadow_gives_way(&mut self) -> bool {
        let _ = self.await_copies();
        let Some(shadow) = &self.shadow else { return false };
        shadow.emptying()();
        self.take_emptied_rooms()
    }

    /// Waits for copies of the program's memory that it does not know of.
    pub(crate) fn await_copies(&mut self) -> Result<()> {
        self.open_devices().try_for_each(|device| {
            self.bind(device)?;
            self.heap(device)?.await_copies()
        })
    }

    /// Takes the addresses back of what was emptied of a shadow; false if nothing was.
    pub(crate) fn take_emptied_rooms(&mut self) -> bool {
        let rooms = self.shadow.as_ref().map(Shadow::take_emptied).unwrap_or_default();
        rooms.iter().for_each(|room| room.give_addresses(self));
        !rooms.is_empty()
    }

    pub(super) fn allocate(&mut self, device: usize, bytes: u64) -> Result<u64> {
        self.bind(device)?;
        self.with_memory(device, |client| {
            client.bind(device)?;
            client.heap(device)?.allocate(bytes)
        })
    }

    pub(super) fn free(&mut self, origin: Origin, request: MemoryFree) -> Answer<()> {
        let device = usize::from(request.device);
        let address = request.address;
        if self.forget_data(address) {
            return Answer::Now(Ok(()));
        }
        if let Err(code) = self.bind(device).and_then(|()| self.heap(device)?.retire(address)) {
            return Answer::Now(Err(code));
        }
        self.when_idle(origin, device, move |client| {
            client.bind(device)?;
            if client.let_array_go(device, address)? {
                return Ok(());
            }
            client.heap(device)?.release(address)?;
            client.data.forget_declared(address);
            Ok(())
        })
    }

    /// Takes over a freed allocation of the same size: one that this stream freed at once, another's when it is done.
    pub(super) fn allocate_async(&mut self, origin: Origin, request: MemoryAllocateAsync) -> Result<u64> {
        let MemoryAllocateAsync { device, bytes, stream } = request;
        let (device, stream) = self.stream(origin, device, stream)?;
        let captured = self.is_captured(device, stream)?;
        let context = self.context_mut(device)?;
        let room = context.heap.room(bytes);
        let usable = |freed: &Freed| {
            freed.room == room && freed.pending.is_none_or(|(owner, _)| owner == stream.0 && !captured)
        };
        while let Some(at) = context.freed.iter().position(usable) {
            let freed = context.freed.swap_remove(at);
            if !context.heap.take_back(freed.address) {
                continue;
            }
            if let Some((_, event)) = freed.pending {
                context.scratch.push(event);
            }
            context.heap.revive(freed.address, bytes);
            if freed.pending.is_some() {
                self.waiting.frees -= 1;
            }
            return Ok(freed.address);
        }
        self.allocate(device, bytes)
    }

    /// Takes over what was freed at this address, if that can be had again; false if nothing was.
    pub(crate) fn take_freed(&mut self, device: usize, address: u64, bytes: u64) -> Result<bool> {
        let context = self.context_mut(device)?;
        let Some(at) = context.freed.iter().position(|freed| freed.address == address) else {
            return Ok(false);
        };
        let freed = context.freed.swap_remove(at);
        if !context.heap.take_back(address) {
            self.bind(device)?;
            return self.heap(device)?.unmap_stale().map(|_| false);
        }
        if let Some((_, event)) = freed.pending {
            context.scratch.push(event);
        }
        context.heap.revive(address, bytes);
        if freed.pending.is_some() {
            self.waiting.frees -= 1;
        }
        Ok(true)
    }

    pub(super) fn free_async(&mut self, origin: Origin, request: MemoryFreeAsync) -> Result<()> {
        let MemoryFreeAsync { device, address, stream } = request;
        if self.forget_data(address) {
            return Ok(());
        }
        if self.exchange.has(address) || self.data.declared_at(address).is_some() {
            // An allocation that took it over could not write to it.
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (device, stream) = self.stream(origin, device, stream)?;
        if self.is_captured(device, stream)? {
            // The graph uses the memory each time it runs; it stays until the context goes.
            return Ok(());
        }
        let bytes = self.heap(device)?.retire(address)?;
        let room = self.context(device)?.heap.room(bytes);
        let done = self.on(device)?.stream_query(stream)?;
        let pending = if done { None } else { Some((stream.0, self.record(device, stream)?)) };
        self.waiting.frees += usize::from(pending.is_some());
        let context = self.context_mut(device)?;
        if pending.is_none() {
            context.heap.pass_on(address);
        }
        context.freed.push(Freed { address, room, pending });
        Ok(())
    }

    pub(crate) fn is_captured(&self, device: usize, stream: Stream) -> Result<bool> {
        Ok(!self.recordings.is_empty() && stream != Stream::LEGACY && self.is_capturing(device, stream)?)
    }

    /// Looks which frees are complete.
    pub(super) fn poll_frees(&mut self) -> bool {
        let mut complete = 0;
        for index in self.open_devices() {
            if self.bind(index).is_err() {
                continue;
            }
            let Some(context) = self.contexts[index].as_mut() else { continue };
            // What a stream freed later is complete later: one look a stream is enough.
            let mut behind: Vec<u64> = Vec::new();
            for freed in &mut context.freed {
                let Some((owner, event)) = freed.pending else { continue };
                if behind.contains(&owner) {
                    continue;
                }
                if context.device.event_query(event) == Ok(false) {
                    behind.push(owner);
                    continue;
                }
                context.scratch.push(event);
                freed.pending = None;
                context.heap.pass_on(freed.address);
                complete += 1;
            }
        }
        self.waiting.frees -= complete;
        complete != 0
    }

    /// Gives freed allocations back to the device until at most `keep` bytes are kept; gives how much that was.
    pub(super) fn trim(&mut self, device: usize, keep: u64) -> Result<u64> {
        self.bind(device)?;
        self.poll_frees();
        let context = self.context_mut(device)?;
        let mut kept: u64 = context.freed.iter().map(|freed| freed.room).sum();
        let mut given = 0;
        let mut at = 0;
        while at < context.freed.len() && kept > keep {
            if context.freed[at].pending.is_some() {
                at += 1;
                continue;
            }
            let freed = context.freed.swap_remove(at);
            context.heap.release(freed.address)?;
            kept -= freed.room;
            given += freed.room;
        }
        // Some of it was what others may have taken by now.
        let stale = context.heap.unmap_stale()?;
        Ok(given.max(stale))
    }

    /// Gives every device back what the program has freed.
    pub(crate) fn trim_all(&mut self) -> Result<()> {
        self.open_devices().try_for_each(|device| self.trim(device, 0).map(|_| ()))
    }

    pub(crate) fn range_of(&self, address: u64) -> Result<(u64, u64, u8)> {
        for (index, context) in
            self.contexts.iter().enumerate().filter_map(|(n, context)| Some((n, context.as_ref()?)))
        {
            if let Some((base, bytes)) = context.heap.range(address) {
                return Ok((base, bytes, index as u8));
            }
        }
        if let Some((base, mapping)) = self.virtual_memory.holding(address) {
            let device = self.virtual_memory.device_of(mapping).unwrap_or_default();
            return Ok((base, mapping.bytes, device as u8));
        }
        if let Some(range) = self.data.range(address) {
            return Ok(range);
        }
        if let Some(range) = self.shared_range(address) {
            return Ok(range);
        }
        let pinned = self
            .pinned
            .iter()
            .find(|pinned| (pinned.address..pinned.address + pinned.bytes).contains(&address));
        let pinned = pinned.ok_or(CUDA_ERROR_NOT_FOUND)?;
        Ok((pinned.address, pinned.bytes, pinned.device as u8))
    }

    pub(super) fn register_pinned(&mut self, request: PinnedRegister<'_>) -> Result<()> {
        let PinnedRegister { device, name, address, bytes } = request;
        let device = usize::from(device);
        if DEVICE_RANGE.contains(&address) && !self.takes_host_memory(address, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.bind(device)?;
        let pinned = map_pinned(self.run_directory(), name, address, bytes, device).map_err(|error| {
            log::warn!("cannot map the pinned file {name:?} at {address:#x}: {error}");
            CUDA_ERROR_OPERATING_SYSTEM
        })?;
        self.context(device)?.device.host_register(address, bytes)?;
        self.pinned.push(pinned);
        Ok(())
    }

    /// Whether memory of the host may lie at these addresses of the device's: the program has reserved them, and mapped nothing there.
    fn takes_host_memory(&self, address: u64, bytes: u64) -> bool {
        self.virtual_memory.is_free(address, bytes) && !self.has_pinned(address, bytes)
    }

    /// Whether pinned memory lies at any of these addresses.
    pub(super) fn has_pinned(&self, address: u64, bytes: u64) -> bool {
        let meets = |pinned: &Pinned| {
            pinned.address < address.saturating_add(bytes) && address < pinned.address + pinned.bytes
        };
        self.pinned.iter().any(meets)
    }

    pub(super) fn unregister_pinned(&mut self, origin: Origin, request: PinnedUnregister) -> Answer<()> {
        let device = usize::from(request.device);
        let address = request.address;
        if !self.pinned.iter().any(|pinned| pinned.address == address) {
            return Answer::Now(Err(CUDA_ERROR_INVALID_VALUE));
        }
        self.when_idle(origin, device, move |client| {
            let at = client.pinned.iter().position(|pinned| pinned.address == address);
            let pinned = client.pinned.swap_remove(at.ok_or(CUDA_ERROR_INVALID_VALUE)?);
            let unregistered = client.on(pinned.device)?.host_unregister(address);
            if let Some(path) = client.run_file(&pinned.name) {
                let _ = std::fs::remove_file(path);
            }
            unregistered
        })
    }
}
