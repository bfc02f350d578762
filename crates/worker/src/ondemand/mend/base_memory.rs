//! Memory that a base lies in: it outlives the worker by its descriptor, and takes no addresses of the program's.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_OUT_OF_MEMORY, CuResult};
use rekindle_device::{Access, Device, Memory, Result};
use rekindle_protocol::memory_file;

use crate::client::Client;
use crate::host_memory::HostMemory;
use crate::memory::Space;

/// So much of a GPU's memory is left to others.
const LEFT_TO_OTHERS: u64 = 16;

/// Addresses apart from those of the program.
pub(super) struct AddressPool(Space);

impl AddressPool {
    pub(super) fn reserve(client: &mut Client, index: usize) -> Result<AddressPool> {
        client.bind(index)?;
        let region = client.heap(index)?.reserve_apart()?;
        Ok(AddressPool(Space::new(region.start, region.end - region.start)))
    }
}

pub(super) struct BaseMemory {
    device: Arc<dyn Device>,
    pub address: u64,
    pub bytes: u64,
    memory: BaseStorage,
    pub descriptor: OwnedFd,
}

enum BaseStorage {
    Device(Memory),
    Host { _memory: HostMemory },
}

impl BaseMemory {
    /// On the GPU if that has room, else in memory of the host. The context is current.
    pub(super) fn new(
        client: &mut Client,
        index: usize,
        apart: &mut AddressPool,
        bytes: u64,
    ) -> Result<BaseMemory> {
        let device = client.context(index)?.device.clone();
        let bytes = bytes.next_multiple_of(device.granularity().max(1));
        let (free, total) = device.memory_info()?;
        if free.saturating_sub(bytes) >= total / LEFT_TO_OTHERS {
            match device.memory_create(bytes) {
                Ok(memory) => return BaseMemory::on_device(device, apart, memory, bytes, None),
                Err(CUDA_ERROR_OUT_OF_MEMORY) => {}
                Err(code) => return Err(code),
            }
        }
        if !host_has(bytes) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let file = memory_file::filled(bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        BaseMemory::on_host(device, bytes, file.into())
    }

    /// What another worker has left.
    pub(super) fn open(
        client: &mut Client,
        index: usize,
        apart: &mut AddressPool,
        (bytes, on_host): (u64, bool),
        descriptor: OwnedFd,
    ) -> Result<BaseMemory> {
        client.bind(index)?;
        let device = client.context(index)?.device.clone();
        if on_host {
            return BaseMemory::on_host(device, bytes, descriptor);
        }
        let memory = device.memory_import(descriptor.as_fd(), bytes)?;
        BaseMemory::on_device(device, apart, memory, bytes, Some(descriptor))
    }

    fn on_device(
        device: Arc<dyn Device>,
        apart: &mut AddressPool,
        memory: Memory,
        bytes: u64,
        descriptor: Option<OwnedFd>,
    ) -> Result<BaseMemory> {
        let made = (|| {
            let descriptor = match descriptor {
                Some(descriptor) => descriptor,
                None => device.memory_export(memory)?,
            };
            let granularity = device.granularity().max(1);
            let address = apart.0.take(bytes, granularity).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
            let mapped = device.map(address, bytes, memory).and_then(|()| {
                device.protect(address, bytes, Access::ReadWrite).inspect_err(|_| {
                    let _ = device.unmap(address, bytes);
                })
            });
            mapped.inspect_err(|_| apart.0.give(address, bytes))?;
            Ok((address, descriptor))
        })();
        let (address, descriptor) = made.inspect_err(|_: &CuResult| {
            let _ = device.memory_release(memory);
        })?;
        Ok(BaseMemory { device, address, bytes, memory: BaseStorage::Device(memory), descriptor })
    }

    fn on_host(device: Arc<dyn Device>, bytes: u64, descriptor: OwnedFd) -> Result<BaseMemory> {
        let memory = HostMemory::map(&descriptor, bytes, Access::ReadWrite);
        let mut memory = memory.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        memory.register(&device)?;
        let address = memory.address();
        Ok(BaseMemory { device, address, bytes, memory: BaseStorage::Host { _memory: memory }, descriptor })
    }

    pub(super) fn is_on_host(&self) -> bool {
        matches!(self.memory, BaseStorage::Host { .. })
    }

    /// Gives it back. Nothing is copied from or to it.
    pub(super) fn close(self, apart: &mut AddressPool) {
        let (address, bytes) = (self.address, self.bytes);
        let closed = match self.memory {
            BaseStorage::Device(memory) => {
                let unmapped = self.device.unmap(address, bytes);
                if unmapped.is_ok() {
                    apart.0.give(address, bytes);
                }
                unmapped.and(self.device.memory_release(memory))
            }
            BaseStorage::Host { .. } => Ok(()),
        };
        if let Err(code) = closed {
            log::warn!(
                "memory of a copy that a lost worker would have been mended with stays in use: {code}"
            );
        }
    }
}

/// Whether the host can do without so much memory: half of what it has to give.
fn host_has(bytes: u64) -> bool {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = available.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kilobytes.is_some_and(|kilobytes| bytes <= kilobytes * 1024 / 2)
}
