//! What of a GPU's memory a program can change, as it was when all that had been asked for was known to have ended well:
//! what later requests are done once more on.
//!
//! It lies in one piece of memory of the GPU, or of the host where the GPU has none left, of which a descriptor is kept:
//! it outlives the context that fails.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::{Access, Device, Result, Stream};
use rekindle_protocol::memory_file;
use serde::{Deserialize, Serialize};

use crate::client::{Client, Room};
use crate::host_memory::HostMemory;

/// Where each row begins is a multiple of this.
const ALIGNMENT: u64 = 512;

/// Something that the program can change.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum MemoryObject {
    Buffer { address: u64 },
    Global { loaded_at: u64, name: String },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    what: MemoryObject,
    bytes: u64,
    /// In the base's memory.
    offset: u64,
}

/// What a worker that starts again has to know of a base, whose descriptor comes along.
#[derive(Serialize, Deserialize)]
pub(super) struct BaseDescription {
    rows: Vec<Row>,
    bytes: u64,
    on_device: bool,
    device: usize,
}

pub(super) struct Base {
    index: usize,
    device: Arc<dyn Device>,
    stream: Stream,
    rows: Vec<(Row, u64)>,
    place: BaseMemory,
}

/// The memory that it lies in.
struct BaseMemory {
    memory: BaseStorage,
    descriptor: OwnedFd,
}

enum BaseStorage {
    Device(Room),
    Host(HostMemory),
}

impl Base {
    /// Makes room for all that the program can change on this device, as it has it now.
    pub(super) fn new(client: &mut Client, index: usize) -> Result<Base> {
        client.bind(index)?;
        let context = client.context(index)?;
        let (device, stream) = (context.device.clone(), context.gpu.copies.first().copied());
        let mut offset = 0;
        let mut rows = Vec::new();
        let mut add = |what, address, bytes: u64| {
            rows.push((Row { what, bytes, offset }, address));
            offset = (offset + bytes).next_multiple_of(ALIGNMENT);
        };
        // Declared data is not changed.
        let buffers = context.heap.buffers().iter().filter(|(_, buffer)| buffer.is_backed());
        for (&address, buffer) in buffers.filter(|(_, buffer)| !buffer.shared && buffer.declared.is_none()) {
            add(MemoryObject::Buffer { address }, address, buffer.bytes);
        }
        for (_, module) in client.modules.iter().filter(|(_, module)| module.device == index) {
            // Globals of modules in pieces are buffers.
            let Some(handle) = module.body.whole() else { continue };
            for global in device.globals(handle)?.into_iter().filter(|global| !global.constant) {
                let what = MemoryObject::Global { loaded_at: module.loaded_at, name: global.name };
                add(what, global.address, global.bytes);
            }
        }
        let place = BaseMemory::new(client, index, offset.max(1))?;
        Ok(Base { index, device, stream: stream.unwrap_or(Stream::LEGACY), rows, place })
    }

    /// Makes it what memory holds now. The device is idle.
    pub(super) fn take(&self) -> Result<()> {
        self.device.bind()?;
        for (row, address) in &self.rows {
            self.device.copy(self.place.address() + row.offset, *address, row.bytes, self.stream)?;
        }
        self.device.stream_synchronize(self.stream)
    }

    pub(super) fn described(&self) -> (BaseDescription, &OwnedFd) {
        let rows = self.rows.iter().map(|(row, _)| row.clone()).collect();
        let on_device = matches!(self.place.memory, BaseStorage::Device(_));
        let described = BaseDescription { rows, bytes: self.place.bytes(), on_device, device: self.index };
        (described, &self.place.descriptor)
    }

    /// Gives its memory back.
    pub(super) fn let_go(self, client: &mut Client) {
        self.place.close(client);
    }
}

/// Gives a program what a base holds. Its buffers are where they were.
pub(super) fn put_back(client: &mut Client, base: &BaseDescription, descriptor: OwnedFd) -> Result<()> {
    let index = base.device;
    let place = BaseMemory::open(client, base, descriptor)?;
    let filled = (|| {
        let device = client.context(index)?.device.clone();
        for Row { what, bytes, offset } in &base.rows {
            let to = match what {
                MemoryObject::Buffer { address } => *address,
                MemoryObject::Global { loaded_at, name } => {
                    let module = client.modules.iter().find(|(_, module)| module.loaded_at == *loaded_at);
                    let (_, module) = module.ok_or(CUDA_ERROR_NOT_FOUND)?;
                    let handle = module.body.whole().ok_or(CUDA_ERROR_NOT_FOUND)?;
                    let (address, found) = device.global(handle, name)?;
                    if found == *bytes { address } else { return Err(CUDA_ERROR_INVALID_VALUE) }
                }
            };
            device.copy(to, place.address() + offset, *bytes, Stream::LEGACY)?;
        }
        device.stream_synchronize(Stream::LEGACY)
    })();
    place.close(client);
    filled
}

impl BaseMemory {
    fn new(client: &mut Client, index: usize, bytes: u64) -> Result<BaseMemory> {
        client.bind(index)?;
        let device = client.context(index)?.device.clone();
        let bytes = bytes.next_multiple_of(device.granularity().max(1));
        match device.memory_create(bytes) {
            Ok(memory) => {
                let descriptor = device.memory_export(memory).inspect_err(|_| {
                    let _ = device.memory_release(memory);
                })?;
                let room = Room::of(client, index, memory, bytes)?;
                Ok(BaseMemory { memory: BaseStorage::Device(room), descriptor })
            }
            Err(CUDA_ERROR_OUT_OF_MEMORY) => {
                let file = memory_file::new(bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
                BaseMemory::on_host(&device, bytes, file.into())
            }
            Err(code) => Err(code),
        }
    }

    fn open(client: &mut Client, base: &BaseDescription, descriptor: OwnedFd) -> Result<BaseMemory> {
        client.bind(base.device)?;
        let device = client.context(base.device)?.device.clone();
        if !base.on_device {
            return BaseMemory::on_host(&device, base.bytes, descriptor);
        }
        let memory = device.memory_import(descriptor.as_fd(), base.bytes)?;
        let room = Room::of(client, base.device, memory, base.bytes)?;
        Ok(BaseMemory { memory: BaseStorage::Device(room), descriptor })
    }

    fn on_host(device: &Arc<dyn Device>, bytes: u64, descriptor: OwnedFd) -> Result<BaseMemory> {
        let memory = HostMemory::map(&descriptor, bytes, Access::ReadWrite);
        let mut memory = memory.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        memory.register(device)?;
        Ok(BaseMemory { memory: BaseStorage::Host(memory), descriptor })
    }

    fn address(&self) -> u64 {
        match &self.memory {
            BaseStorage::Device(room) => room.address,
            BaseStorage::Host(memory) => memory.address(),
        }
    }

    fn bytes(&self) -> u64 {
        match &self.memory {
            BaseStorage::Device(room) => room.bytes,
            BaseStorage::Host(memory) => memory.bytes(),
        }
    }

    fn close(self, client: &mut Client) {
        if let BaseStorage::Device(room) = self.memory
            && let Err(code) = room.close(client)
        {
            log::warn!("memory that requests might have been done again on stays in use: {code}");
        }
    }
}
