//! What the dispatch thread does of it, on the GPU.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM};
use rekindle_device::{Access, Result, Stream, uuid_text};
use rekindle_protocol::fault;

use super::conversation::make_room;
use crate::client::Client;
use crate::host_memory::HostMemory;

impl Client {
    /// A copy of a range in memory of its own, which nothing here holds any more.
    pub(super) fn copy_out(&mut self, device: usize, (from, bytes): (u64, u64)) -> Result<OwnedFd> {
        fault::point("exchange-copy").map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        let at = self.add_array(device, bytes)?;
        let copied = self.copy_and_wait(device, at, from, bytes);
        let memory = copied.and_then(|()| self.heap(device)?.share(at));
        let released = self.heap(device)?.release(at);
        memory.and_then(|memory| released.map(|()| memory))
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

    /// Has arrays that nobody uses give way to the program's own memory; false if there are none.
    pub(crate) fn arrays_give_way(&mut self, device: usize) -> bool {
        if self.exchange.owner.is_none() {
            return false;
        }
        let Ok(gpu) = self.context(device).map(|context| uuid_text(&context.device.info().uuid)) else {
            return false;
        };
        make_room(self, device, gpu)
    }

    /// Arrays of others become the program's own, for what keeps its memory. Nothing is under way.
    pub(crate) fn own_arrays(&mut self) -> std::result::Result<(), String> {
        let held: Vec<u64> = self.exchange.held.keys().copied().collect();
        for at in held {
            let Some(device) = self.device_of(at) else { continue };
            let own = self.with_memory(device, |client| {
                client.bind(device)?;
                client.heap(device)?.make_private(at)
            });
            own.map_err(|code| {
                format!(
                    "the program holds an array that another function has handed on, and the GPU has no room for a copy of \
                     it ({code}); free some memory, or have the program let go of it"
                )
            })?;
            self.exchange.forget(at);
        }
        Ok(())
    }

    /// Forgets arrays whose memory was given back.
    pub(crate) fn forget_unmapped_arrays(&mut self) {
        let held = self.exchange.held.keys().copied();
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
