//! What the dispatch thread does of it, on the GPU.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rekindle_cuda::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM};
use rekindle_device::{Access, Result, Stream, uuid_text};
use rekindle_protocol::fault;

use super::conversation::{Way, make_room};
use super::kept::{Block, KEPT};
use super::{Copied, ImportedArray};
use crate::client::Client;
use crate::dispatch::DispatchError;
use crate::host_memory::HostMemory;

impl Client {
    /// A copy of a range in memory for it alone: that of an array that is over, if it is here still.
    pub(super) fn copy_out(
        &mut self,
        device: usize,
        (from, bytes): (u64, u64),
        room: u64,
        over: Option<&str>,
    ) -> Result<Copied> {
        fault::point("exchange-copy").map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        let is = |block: &Block| block.given.as_ref().is_some_and(|(array, _)| Some(array.as_str()) == over);
        let before = self.exchange.given.take(is);
        let copied = match before.and_then(|Block { at, name, given, .. }| Some((at, name, given?.1))) {
            Some((at, name, memory)) => Copied { at, room, memory, name: Some(name) },
            None => {
                let made = self.with_memory(device, |client| {
                    client.bind(device)?;
                    client.heap(device)?.make_aside(room)
                });
                let (at, memory) = made?;
                Copied { at, room, memory, name: None }
            }
        };
        match self.copy_and_wait(device, copied.at, from, bytes) {
            Ok(()) => Ok(copied),
            Err(code) => {
                self.heap(device)?.drop_aside(copied.at);
                Err(code)
            }
        }
    }

    /// Keeps memory that has this array now for a later one, or gives it back where it has none.
    pub(super) fn keep_given(&mut self, device: usize, copied: Copied, array: Option<String>) {
        let Copied { at, room, memory, name } = copied;
        let since = Instant::now();
        let block = |array: String| {
            let name = name.unwrap_or_else(|| array.clone());
            Block { device, at, room, name, given: Some((array, memory)), since }
        };
        let gone = match array.map(block) {
            Some(block) => {
                let most = self.memory_of(device);
                self.exchange.given.keep(block, most)
            }
            None => return self.drop_block(device, at),
        };
        self.drop_blocks(gone);
    }

    /// Makes a buffer of memory that is mapped still from an array before; none if it is not.
    pub(super) fn take_kept(&mut self, device: usize, sizes: (u64, u64), name: &str) -> Result<Option<u64>> {
        let is = |block: &Block| (block.device, block.room, block.name.as_str()) == (device, sizes.1, name);
        let Some(block) = self.exchange.taken.take(is) else { return Ok(None) };
        self.bind(device)?;
        self.heap(device)?.put_back(block.at, sizes.0)?;
        Ok(Some(block.at))
    }

    /// Gives an array of others back, which nothing uses any more, and keeps its memory mapped for the next one; false if there
    /// is none there.
    pub(crate) fn let_array_go(&mut self, device: usize, at: u64) -> Result<bool> {
        let Some(ImportedArray { memory, .. }) = self.exchange.imported.remove(&at) else { return Ok(false) };
        let Some((name, room)) = memory else { return Ok(false) };
        self.heap(device)?.set_aside(at)?;
        let (since, most) = (Instant::now(), self.memory_of(device));
        let block = Block { device, at, room, name, given: None, since };
        let gone = self.exchange.taken.keep(block, most);
        self.drop_blocks(gone);
        Ok(true)
    }

    /// Gives back memory that was kept for arrays and has not been used for a while.
    pub(crate) fn drop_kept(&mut self) {
        if !self.exchange.keeps() {
            return;
        }
        let mut gone = self.exchange.given.take_unused();
        gone.extend(self.exchange.taken.take_unused());
        self.drop_blocks(gone);
    }

    /// Gives back all that was kept; false if it was nothing.
    fn drop_all_kept(&mut self) -> bool {
        let mut gone = self.exchange.given.take_all();
        gone.extend(self.exchange.taken.take_all());
        let some = !gone.is_empty();
        self.drop_blocks(gone);
        some
    }

    fn drop_blocks(&mut self, blocks: Vec<Block>) {
        blocks.into_iter().for_each(|block| self.drop_block(block.device, block.at));
    }

    fn drop_block(&mut self, device: usize, at: u64) {
        match self.bind(device).and_then(|()| self.heap(device)) {
            Ok(heap) => heap.drop_aside(at),
            Err(code) => log::warn!("memory that was kept for arrays stays in use: {code}"),
        }
    }

    fn memory_of(&self, device: usize) -> u64 {
        self.context(device).map_or(0, |context| context.device.info().total_memory)
    }

    /// Maps an array that lies on this GPU.
    pub(super) fn map_array(
        &mut self,
        device: usize,
        (bytes, room): (u64, u64),
        memory: BorrowedFd<'_>,
    ) -> Result<u64> {
        self.bind(device)?;
        self.heap(device)?.add_shared(bytes, room, memory)
    }

    /// Copies an array that lies on another GPU, whose memory this one can have mapped.
    pub(super) fn copy_from_gpu(
        &mut self,
        device: usize,
        sizes: (u64, u64),
        memory: BorrowedFd<'_>,
    ) -> Result<u64> {
        let there = self.map_array(device, sizes, memory)?;
        let copied = self.add_array(device, sizes.0).and_then(|at| {
            let copied = self.copy_and_wait(device, at, there, sizes.0);
            copied.map(|()| at).inspect_err(|_| {
                let _ = self.heap(device).and_then(|heap| heap.release(at));
            })
        });
        let closed = self.heap(device)?.release(there);
        copied.and_then(|at| closed.map(|()| at))
    }

    /// Copies an array that lies on the host. With `keep` it can only be read from then on, and its memory comes along.
    pub(super) fn copy_from_host(
        &mut self,
        device: usize,
        bytes: u64,
        from: &OwnedFd,
        keep: bool,
    ) -> Result<(u64, Option<OwnedFd>)> {
        let at = self.add_array(device, bytes)?;
        let filled = self.host_memory(device, from, bytes, Access::Read).and_then(|host| {
            self.copy_and_wait(device, at, host.address(), bytes)?;
            keep.then(|| self.heap(device)?.share(at)).transpose()
        });
        match filled {
            Ok(memory) => Ok((at, memory)),
            Err(code) => {
                self.heap(device)?.release(at)?;
                Err(code)
            }
        }
    }

    /// Copies an array from a GPU's memory to the host's.
    pub(super) fn move_out(&mut self, device: usize, sizes: (u64, u64), memories: &[OwnedFd]) -> Result<()> {
        fault::point("exchange-move").map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        let [from, to] = memories else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let at = self.map_array(device, sizes, from.as_fd())?;
        let copied = self
            .host_memory(device, to, sizes.0, Access::ReadWrite)
            .and_then(|host| self.copy_and_wait(device, host.address(), at, sizes.0));
        let closed = self.heap(device)?.release(at);
        copied.and(closed)
    }

    /// Moves an array to another GPU, whose memory comes of it, or to the host.
    pub(super) fn move_array(&mut self, device: usize, way: Way) -> Result<Option<OwnedFd>> {
        match &way.to {
            Some(gpu) => self.move_over(device, way.sizes, gpu, &way.memories).map(Some),
            None => self.move_out(device, way.sizes, &way.memories).map(|()| None),
        }
    }

    /// Copies an array to memory of another GPU, which it makes.
    fn move_over(
        &mut self,
        device: usize,
        sizes: (u64, u64),
        gpu: &str,
        memories: &[OwnedFd],
    ) -> Result<OwnedFd> {
        fault::point("exchange-over").map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        let [from] = memories else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let reached = self.gpus.reaches(device).into_iter().find(|uuid| uuid_text(uuid) == gpu);
        let gpu = reached.ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        let here = self.map_array(device, sizes, from.as_fd())?;
        let copied = self.heap(device)?.make_aside_on(&gpu, sizes.1).and_then(|(there, memory)| {
            let copied = self.copy_and_wait(device, there, here, sizes.0);
            self.heap(device)?.drop_aside(there);
            copied.map(|()| memory)
        });
        let closed = self.heap(device)?.release(here);
        copied.and_then(|memory| closed.map(|()| memory))
    }

    /// Copies an array that is wanted elsewhere from the memory of this GPU, as `move_out` does.
    pub(crate) fn copy_for_node(&mut self, gpu: &str, sizes: (u64, u64), memories: &[OwnedFd]) -> Result<()> {
        let found = self.gpus.infos().iter().position(|info| uuid_text(&info.uuid) == gpu);
        let device = found.ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        self.open(device)?;
        self.move_out(device, sizes, memories)
    }

    /// Has arrays that nobody uses give way to the program's own memory; false if there are none.
    pub(crate) fn arrays_give_way(&mut self, device: usize) -> bool {
        if self.exchange.owner.is_none() {
            return false;
        }
        let Ok(gpu) = self.context(device).map(|context| uuid_text(&context.device.info().uuid)) else {
            return false;
        };
        if self.drop_all_kept() {
            return true;
        }
        if make_room(self, device, gpu) {
            self.exchange.gave_way = Some(Instant::now());
            return true;
        }
        // Whoever has put them keeps the memory for so long.
        let kept = self.exchange.gave_way.take().map(|since| KEPT.saturating_sub(since.elapsed()));
        let kept = kept.filter(|kept| !kept.is_zero());
        kept.inspect(|kept| std::thread::sleep(*kept)).is_some()
    }

    /// Arrays of others become the program's own, for what keeps its memory. Nothing is under way.
    pub(crate) fn own_arrays(&mut self) -> std::result::Result<(), DispatchError> {
        let held: Vec<u64> = self.exchange.imported.keys().copied().collect();
        for at in held {
            let Some(device) = self.device_of(at) else { continue };
            let own = self.with_memory(device, |client| {
                client.bind(device)?;
                client.heap(device)?.make_private(at)
            });
            own.map_err(DispatchError::Array)?;
            self.exchange.forget(at);
        }
        Ok(())
    }

    /// Forgets arrays whose memory was given back, and what was kept for others.
    pub(crate) fn forget_unmapped_arrays(&mut self) {
        let Client { exchange, contexts, .. } = self;
        let is_there = |block: &Block| {
            contexts[block.device].as_ref().is_some_and(|context| context.heap.has_aside(block.at))
        };
        exchange.given.retain(is_there);
        exchange.taken.retain(is_there);
        let held = self.exchange.imported.keys().copied();
        let gone: Vec<u64> = held.filter(|at| self.device_of(*at).is_none()).collect();
        gone.into_iter().for_each(|at| self.exchange.forget(at));
    }

    fn device_of(&self, address: u64) -> Option<usize> {
        self.open_devices()
            .find(|device| self.context(*device).is_ok_and(|context| context.heap.range(address).is_some()))
    }

    /// A buffer on memory of its own.
    fn add_array(&mut self, device: usize, bytes: u64) -> Result<u64> {
        self.with_memory(device, |client| {
            client.bind(device)?;
            client.heap(device)?.add_own(bytes)
        })
    }

    fn copy_and_wait(&mut self, device: usize, to: u64, from: u64, bytes: u64) -> Result<()> {
        let stream = self.context(device)?.gpu.copies.first().copied().unwrap_or(Stream::LEGACY);
        self.finish_assumed()?;
        let gpu = self.on(device)?;
        gpu.copy(to, from, bytes, stream)?;
        gpu.stream_synchronize(stream)
    }

    fn host_memory(
        &mut self,
        device: usize,
        memory: &OwnedFd,
        bytes: u64,
        access: Access,
    ) -> Result<HostMemory> {
        let gpu = self.context(device)?.device.clone();
        HostMemory::map_for(memory, bytes, access, &gpu).map_err(|error| {
            log::error!("memory of the host cannot be mapped: {error}");
            CUDA_ERROR_OPERATING_SYSTEM
        })
    }
}
