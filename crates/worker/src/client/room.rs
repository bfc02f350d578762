//! Memory of a GPU that the worker has for itself, mapped among the program's.

use std::sync::Arc;

use rekindle_device::{Access, Device, Memory, Result};

use super::Client;

/// It takes addresses of the heap of its device, which has to get them back: see [`Room::close`].
pub(crate) struct Room {
    pub index: usize,
    pub device: Arc<dyn Device>,
    pub address: u64,
    pub bytes: u64,
    memory: Memory,
}

impl Room {
    /// Makes room for so many bytes, which it rounds up.
    pub(crate) fn new(client: &mut Client, index: usize, bytes: u64) -> Result<Room> {
        client.bind(index)?;
        let device = client.context(index)?.device.clone();
        let (memory, bytes) = Room::memory(&*device, bytes)?;
        Room::of(client, index, memory, bytes)
    }

    /// Memory for a room, and how many bytes it has. The device is bound.
    pub(super) fn memory(device: &dyn Device, bytes: u64) -> Result<(Memory, u64)> {
        let bytes = bytes.next_multiple_of(device.granularity().max(1));
        Ok((device.memory_create(bytes)?, bytes))
    }

    /// Maps this memory, which belongs to the room from now on.
    pub(crate) fn of(client: &mut Client, index: usize, memory: Memory, bytes: u64) -> Result<Room> {
        let device = client.context(index)?.device.clone();
        let heap = client.heap(index)?;
        let granularity = heap.granularity();
        let address = match heap.take_addresses(bytes, granularity, 0) {
            Ok(address) => address,
            Err(code) => {
                let _ = device.memory_release(memory);
                return Err(code);
            }
        };
        let room = Room { index, device: device.clone(), address, bytes, memory };
        let mapped = device
            .map(address, bytes, memory)
            .and_then(|()| device.protect(address, bytes, Access::ReadWrite));
        match mapped {
            Ok(()) => Ok(room),
            Err(code) => {
                let _ = room.close(client);
                Err(code)
            }
        }
    }

    /// Gives the memory back, from whatever thread. The driver waits for all work of the device.
    pub(crate) fn empty(&self) -> Result<()> {
        self.device.bind()?;
        self.device.unmap(self.address, self.bytes).and(self.device.memory_release(self.memory))
    }

    /// Gives memory and addresses back.
    pub(crate) fn close(self, client: &mut Client) -> Result<()> {
        self.empty()?;
        self.give_addresses(client);
        Ok(())
    }

    /// Gives the addresses of an empty room back.
    pub(crate) fn give_addresses(&self, client: &mut Client) {
        if let Ok(heap) = client.heap(self.index) {
            heap.give_addresses(self.address, self.bytes);
        }
    }
}
