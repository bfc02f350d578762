//! Memories of the daemon's caches, as a worker sees them, and which chunks of an image lie in them.
//!
//! Host memory is mapped read-only for the life of the worker. Where the GPU knows it too ([`Registered`]), it copies from
//! there without the processor. Memory of a GPU is mapped, read-only, for one load. In both, what was put in was checked
//! then, and nobody but the daemon, or a worker that fills it, can write to it; what is borrowed for a load stays as it is
//! until the daemon has heard that the load is over.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::{Access, Device, Memory, Result};
use rekindle_protocol::worker::{CACHE_SLOT, CacheMemory, Cached};

use crate::host_memory::HostMemory;
use crate::memory::Heap;

/// All memories that this worker was given.
#[derive(Default)]
pub(crate) struct CacheMemories {
    host: HashMap<u32, Arc<HostMemory>>,
    device: HashMap<u32, (CacheMemory, OwnedFd)>,
    /// What this worker itself has made, to fill it.
    made: HashMap<u32, Arc<DeviceMemory>>,
    /// Addresses that are left for memory of GPUs.
    room: Option<Range<u64>>,
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
        } else if let Entry::Vacant(location) = self.host.entry(memory.number) {
            let mapped = HostMemory::map(&descriptor, memory.bytes, Access::Read);
            let mut mapped = mapped.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
            if let Some(Err(code)) = device.map(|device| mapped.register(device)) {
                log::warn!("a cache in host memory is copied from by the processor: {code}");
            }
            location.insert(Arc::new(mapped));
        }
        Ok(())
    }

    /// Whether there is memory of GPUs to be mapped.
    pub(super) fn needs_room(&self) -> bool {
        !self.device.is_empty()
    }

    /// Sees to addresses for memory of GPUs, apart from those of a program.
    pub(super) fn make_room(&mut self, heap: &mut Heap) -> Result<()> {
        if self.room.is_none() {
            self.room = Some(heap.reserve_apart()?);
        }
        Ok(())
    }

    /// Makes memory of a GPU. The descriptor holds it, whatever becomes of this worker.
    pub(super) fn make(&mut self, owner: Arc<dyn Device>, memory: &CacheMemory) -> Result<OwnedFd> {
        owner.bind()?;
        let address = take_room(&mut self.room, memory.bytes)?;
        let made = owner.memory_create(memory.bytes)?;
        let exported = owner.memory_export(made);
        let mapped = DeviceMemory::map(owner, made, memory.bytes, address, Access::ReadWrite)?;
        self.made.insert(memory.number, Arc::new(mapped));
        exported
    }

    /// The memory of this number, to be written to.
    pub(super) fn writable(
        &mut self,
        owner: Arc<dyn Device>,
        memory: &CacheMemory,
        descriptor: &OwnedFd,
    ) -> Result<Arc<DeviceMemory>> {
        match self.made.get(&memory.number) {
            Some(made) => Ok(made.clone()),
            None => {
                let address = take_room(&mut self.room, memory.bytes)?;
                DeviceMemory::import(owner, memory, descriptor, address, Access::ReadWrite).map(Arc::new)
            }
        }
    }

    /// Opens what a load needs of them. Memory of a GPU is the load's from now on.
    pub(super) fn open(
        &mut self,
        rows: Vec<Cached>,
        device: impl Fn(usize) -> Option<Arc<dyn Device>>,
    ) -> Views {
        let mut waiting = std::mem::take(&mut self.device);
        let mut room = self.room.take();
        let views = self.views(rows, |number| {
            let (memory, descriptor) = waiting.remove(&number)?;
            let owner = device(memory.device?)?;
            let opened = take_room(&mut room, memory.bytes)
                .and_then(|at| DeviceMemory::import(owner, &memory, &descriptor, at, Access::Read));
            let opened =
                opened.inspect_err(|code| log::warn!("a cache in GPU memory cannot be read: {code}"));
            opened.ok().map(Arc::new)
        });
        self.room = room;
        views
    }

    /// Takes out the memories that rows let buffers be, by the names of the parts that they hold. Those rows go too.
    pub(super) fn take_shared(&mut self, rows: &mut Vec<Cached>) -> HashMap<String, OwnedFd> {
        let mut shared = HashMap::new();
        rows.retain(|row| {
            let whole = row.count.saturating_mul(CACHE_SLOT);
            let fits = |memory: &CacheMemory| memory.bytes == whole && row.offset == 0 && row.first == 0;
            let known = self.device.get(&row.memory).filter(|(memory, _)| row.share && fits(memory));
            let taken = known.and_then(|(_, descriptor)| descriptor.try_clone().ok());
            let kept = taken.is_none();
            shared.extend(taken.map(|descriptor| (row.part.clone(), descriptor)));
            kept
        });
        shared
    }

    /// As [`CacheMemories::open`], of memory of the host alone.
    pub(super) fn open_host(&self, rows: Vec<Cached>) -> Views {
        self.views(rows, |_| None)
    }

    fn views(&self, rows: Vec<Cached>, mut open: impl FnMut(u32) -> Option<Arc<DeviceMemory>>) -> Views {
        let mut views = Views::default();
        let mut opened: HashMap<u32, Option<Arc<DeviceMemory>>> = HashMap::new();
        for row in rows {
            let bytes = row.count.saturating_mul(CACHE_SLOT);
            let fits = |whole: u64| row.offset.checked_add(bytes).is_some_and(|end| end <= whole);
            let at = match self.host.get(&row.memory) {
                Some(memory) => Some(CacheLocation::Host(memory.clone())).filter(|_| fits(memory.bytes())),
                None => {
                    let memory = opened.entry(row.memory).or_insert_with(|| open(row.memory));
                    memory.clone().filter(|memory| fits(memory.bytes)).map(CacheLocation::Device)
                }
            };
            if let Some(at) = at {
                let run = Run { first: row.first, count: row.count, at, offset: row.offset };
                views.parts.entry(row.part).or_default().push(run);
            }
        }
        views
    }
}

/// The next addresses of the room.
fn take_room(room: &mut Option<Range<u64>>, bytes: u64) -> Result<u64> {
    let left = room.as_mut().filter(|room| room.end - room.start >= bytes);
    let left = left.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    let at = left.start;
    left.start += bytes;
    Ok(at)
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
    at: CacheLocation,
    offset: u64,
}

#[derive(Clone)]
pub(super) enum CacheLocation {
    Host(Arc<HostMemory>),
    Device(Arc<DeviceMemory>),
}

impl Run {
    /// How many chunks of it there are from this one on.
    pub(super) fn left(&self, number: u64) -> u64 {
        self.first + self.count - number
    }

    pub(super) fn at(&self) -> &CacheLocation {
        &self.at
    }

    /// The address of this chunk, in this process or on the device.
    pub(super) fn address(&self, number: u64) -> u64 {
        let base = match &self.at {
            CacheLocation::Host(memory) => memory.address(),
            CacheLocation::Device(memory) => memory.address,
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
        if !bytes.is_multiple_of(device.granularity()) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        device.bind()?;
        let memory = device.memory_import(descriptor.as_fd(), bytes)?;
        DeviceMemory::map(device, memory, bytes, address, access)
    }

    /// Takes the memory over, and maps it where addresses are reserved.
    fn map(
        device: Arc<dyn Device>,
        memory: Memory,
        bytes: u64,
        address: u64,
        access: Access,
    ) -> Result<DeviceMemory> {
        if let Err(code) = device.map(address, bytes, memory) {
            let _ = device.memory_release(memory);
            return Err(code);
        }
        let whole = DeviceMemory { device, memory, address, bytes };
        whole.protect(access)?;
        Ok(whole)
    }

    fn protect(&self, access: Access) -> Result<()> {
        self.device.bind()?;
        self.device.protect(self.address, self.bytes, access)
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
            .and_then(|()| device.memory_release(*memory));
        if let Err(code) = undone {
            log::warn!("a cache in GPU memory stays mapped in this worker: {code}");
        }
    }
}
