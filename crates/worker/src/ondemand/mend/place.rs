//! Memory that a base lies in: it outlives the worker by its descriptor, and takes no addresses of the program's.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_OUT_OF_MEMORY, CuResult};
use rekindle_device::{Access, Device, Memory, Result};

use crate::client::Client;
use crate::memory::Space;
use crate::successor;

/// So much of a GPU's memory is left to others.
const LEFT_TO_OTHERS: u64 = 16;

/// Addresses apart from those of the program.
pub(super) struct Apart(Space);

impl Apart {
    pub(super) fn reserve(client: &mut Client, index: usize) -> Result<Apart> {
        client.bind(index)?;
        let region = client.heap(index)?.reserve_apart()?;
        Ok(Apart(Space::new(region.start, region.end - region.start)))
    }
}

pub(super) struct Place {
    device: Arc<dyn Device>,
    pub address: u64,
    pub bytes: u64,
    memory: On,
    pub descriptor: OwnedFd,
}

enum On {
    Device(Memory),
    Host,
}

impl Place {
    /// On the GPU if that has room, else in memory of the host. The context is current.
    pub(super) fn new(client: &mut Client, index: usize, apart: &mut Apart, bytes: u64) -> Result<Place> {
        let device = client.context(index)?.device.clone();
        let bytes = bytes.next_multiple_of(device.granularity().max(1));
        let (free, total) = device.memory_info()?;
        if free.saturating_sub(bytes) >= total / LEFT_TO_OTHERS {
            match device.memory_create(bytes) {
                Ok(memory) => return Place::on_device(device, apart, memory, bytes, None),
                Err(CUDA_ERROR_OUT_OF_MEMORY) => {}
                Err(code) => return Err(code),
            }
        }
        if !host_has(bytes) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let file = successor::memory_file(&[]).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: asks for memory for a range of an open file: a store there would end the process without it.
        if unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) } != 0 {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        Place::on_host(device, bytes, file)
    }

    /// What another worker has left.
    pub(super) fn open(
        client: &mut Client,
        index: usize,
        apart: &mut Apart,
        (bytes, on_host): (u64, bool),
        descriptor: OwnedFd,
    ) -> Result<Place> {
        client.bind(index)?;
        let device = client.context(index)?.device.clone();
        if on_host {
            return Place::on_host(device, bytes, File::from(descriptor));
        }
        let memory = device.memory_import(descriptor.as_fd(), bytes)?;
        Place::on_device(device, apart, memory, bytes, Some(descriptor))
    }

    fn on_device(
        device: Arc<dyn Device>,
        apart: &mut Apart,
        memory: Memory,
        bytes: u64,
        descriptor: Option<OwnedFd>,
    ) -> Result<Place> {
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
        Ok(Place { device, address, bytes, memory: On::Device(memory), descriptor })
    }

    fn on_host(device: Arc<dyn Device>, bytes: u64, file: File) -> Result<Place> {
        let (protection, number) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping of a file that is so long, at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes as usize, protection, libc::MAP_SHARED, number, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        if let Err(code) = device.host_register(base as u64, bytes) {
            // SAFETY: mapped above, and known to nobody.
            unsafe { libc::munmap(base, bytes as usize) };
            return Err(code);
        }
        Ok(Place { device, address: base as u64, bytes, memory: On::Host, descriptor: file.into() })
    }

    pub(super) fn is_on_host(&self) -> bool {
        matches!(self.memory, On::Host)
    }

    /// Gives it back. Nothing is copied from or to it.
    pub(super) fn close(self, apart: &mut Apart) {
        let (address, bytes) = (self.address, self.bytes);
        let closed = match self.memory {
            On::Device(memory) => {
                let unmapped = self.device.unmap(address, bytes);
                if unmapped.is_ok() {
                    apart.0.give(address, bytes);
                }
                unmapped.and(self.device.memory_release(memory))
            }
            On::Host => {
                let forgotten = self.device.host_unregister(address);
                // SAFETY: mapped by `on_host`; no copy from or to it is under way.
                unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
                forgotten
            }
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
