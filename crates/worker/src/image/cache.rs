//! Memories of the daemon's caches, as a worker sees them, and which chunks of an image lie in them.
//!
//! Host memory is mapped read-only for the life of the worker. Where the GPU knows it too ([`Registered`]), it copies from
//! there without the processor. Memory of a GPU is mapped, read-only, for one load. In both, what was put in was checked
//! then, and nobody but the daemon, or a worker that fills it, can write to it; what is borrowed for a load stays as it is
//! until the daemon has heard that the load is over.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::{Access, CACHE_RANGE, Device, Memory, Result};
use rekindle_protocol::worker::{CACHE_SLOT, CacheMemory, Cached};

/// All memories that this worker was given.
#[derive(Default)]
pub(crate) struct CacheMemories {
    host: HashMap<u32, Arc<HostMemory>>,
    device: HashMap<u32, (CacheMemory, OwnedFd)>,
}

impl CacheMemories {
    /// `device` is to know it, if one is given. What is known already is left as it is.
    pub(crate) fn take(
        &mut self,
        memory: CacheMemory,
        descriptor: OwnedFd,
        device: Option<&Arc<dyn Device>>,
    ) -> Result<()> {
        if memory.device.is_some() {
            self.device.insert(memory.number, (memory, descriptor));
        } else if let Entry::Vacant(place) = self.host.entry(memory.number) {
            place.insert(Arc::new(HostMemory::map(&descriptor, memory.bytes, device)?));
        }
        Ok(())
    }

    /// Opens what a load needs of them. Memory of a GPU is the load's from now on.
    pub(super) fn open(
        &mut self,
        rows: Vec<Cached>,
        device: impl Fn(usize) -> Option<Arc<dyn Device>>,
    ) -> Views {
        let mut views = Views::default();
        let mut room = CACHE_RANGE.start;
        let mut mapped: HashMap<u32, Option<Arc<DeviceMemory>>> = HashMap::new();
        let mut waiting = std::mem::take(&mut self.device);
        for row in rows {
            let mut open = |number| {
                let (memory, descriptor) = waiting.remove(&number)?;
                let owner = device(memory.device?)?;
                let step = memory.bytes.next_multiple_of(owner.granularity());
                let opened = DeviceMemory::import(owner, &memory, &descriptor, room, Access::Read);
                room += step;
                opened
                    .inspect_err(|code| log::warn!("a cache in GPU memory cannot be read: {code}"))
                    .ok()
                    .map(Arc::new)
            };
            let bytes = row.count * CACHE_SLOT;
            let at = match self.host.get(&row.memory) {
                Some(memory) if memory.holds(row.offset, bytes) => At::Host(memory.clone()),
                Some(_) => continue,
                None => match mapped.entry(row.memory).or_insert_with(|| open(row.memory)) {
                    Some(memory) if row.offset + bytes <= memory.bytes => At::Device(memory.clone()),
                    _ => continue,
                },
            };
            let run = Run { first: row.first, count: row.count, at, offset: row.offset };
            views.parts.entry(row.part).or_default().push(run);
        }
        views
    }
}

/// Which chunks of an image lie where.
#[derive(Default)]
pub(super) struct Views {
    parts: HashMap<String, Vec<Run>>,
}

/// Chunks that lie one after the other.
pub(super) struct Run {
    first: u64,
    count: u64,
    at: At,
    offset: u64,
}

#[derive(Clone)]
pub(super) enum At {
    Host(Arc<HostMemory>),
    Device(Arc<DeviceMemory>),
}

impl Run {
    /// How many chunks of it there are from this one on.
    pub(super) fn left(&self, number: u64) -> u64 {
        self.first + self.count - number
    }

    pub(super) fn at(&self) -> &At {
        &self.at
    }

    /// The address of this chunk, in this process or on the device.
    pub(super) fn address(&self, number: u64) -> u64 {
        let base = match &self.at {
            At::Host(memory) => memory.base as u64,
            At::Device(memory) => memory.address,
        };
        base + self.offset + (number - self.first) * CACHE_SLOT
    }
}

impl Views {
    /// Where the chunk of this number lies.
    pub(super) fn find(&self, part: &str, number: u64) -> Option<&Run> {
        let runs = self.parts.get(part)?;
        runs.iter().find(|run| (run.first..run.first + run.count).contains(&number))
    }
}

/// Memory of the daemon's that this process can only read.
pub(super) struct HostMemory {
    base: *mut u8,
    bytes: u64,
    /// What knows it, and is to forget it.
    registered: Option<Arc<dyn Device>>,
}

// SAFETY: the mapping is shared memory that is only read, through raw pointers, from whatever thread.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    fn map(descriptor: &OwnedFd, bytes: u64, device: Option<&Arc<dyn Device>>) -> Result<HostMemory> {
        let (flags, number) = (libc::MAP_SHARED, descriptor.as_raw_fd());
        // SAFETY: a new mapping of an open file, at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, libc::PROT_READ, flags, number, 0) };
        if base == libc::MAP_FAILED {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let mut memory = HostMemory { base: base.cast(), bytes, registered: None };
        if let Some(device) = device {
            let known = device.bind().and_then(|()| device.host_register_read_only(base as u64, bytes));
            match known {
                Ok(()) => memory.registered = Some(device.clone()),
                Err(code) => log::warn!("a cache in host memory is copied from by the processor: {code}"),
            }
        }
        Ok(memory)
    }

    fn holds(&self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }

    /// Whether devices can copy from it by themselves.
    pub(super) fn is_registered(&self) -> bool {
        self.registered.is_some()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some(device) = &self.registered {
            let _ = device.bind().and_then(|()| device.host_unregister(self.base as u64));
        }
        // SAFETY: mapped by `map`, and no load uses it any more: each holds a reference.
        unsafe { libc::munmap(self.base.cast(), self.bytes as usize) };
    }
}

/// Memory of a cache on a GPU, mapped.
pub(super) struct DeviceMemory {
    device: Arc<dyn Device>,
    memory: Memory,
    address: u64,
    bytes: u64,
}

impl DeviceMemory {
    pub(super) fn import(
        device: Arc<dyn Device>,
        memory: &CacheMemory,
        descriptor: &OwnedFd,
        address: u64,
        access: Access,
    ) -> Result<DeviceMemory> {
        let bytes = memory.bytes;
        if !bytes.is_multiple_of(device.granularity()) || address + bytes > CACHE_RANGE.end {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        device.bind()?;
        let memory = device.memory_import(descriptor.as_fd(), bytes)?;
        let reserved = device.reserve(address, bytes);
        let mapped = reserved.and_then(|()| {
            let mapped = device.map(address, bytes, memory);
            mapped.inspect_err(|_| {
                let _ = device.unreserve(address, bytes);
            })
        });
        if let Err(code) = mapped {
            let _ = device.memory_release(memory);
            return Err(code);
        }
        let whole = DeviceMemory { device, memory, address, bytes };
        whole.device.protect(address, bytes, access)?;
        Ok(whole)
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Self { device, memory, address, bytes } = self;
        let undone = device
            .bind()
            .and_then(|()| device.unmap(*address, *bytes))
            .and_then(|()| device.unreserve(*address, *bytes))
            .and_then(|()| device.memory_release(*memory));
        if let Err(code) = undone {
            log::warn!("a cache in GPU memory stays mapped in this worker: {code}");
        }
    }
}
