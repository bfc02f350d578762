//! Handles, reservations and mappings that the program makes itself.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{Access, Result};
use rekindle_protocol::operation::{
    AddressFree, AddressReserve, PhysicalCreate, PhysicalMap, PhysicalProtect, PhysicalUnmap,
};

use super::Client;
use crate::memory::{Mapping, Physical, Reservation};

/// Addresses belong to no device in CUDA; they are all taken from the first one's heap.
const ADDRESS_OWNER: usize = 0;

impl Client {
    pub(super) fn reserve_addresses(&mut self, request: AddressReserve) -> Result<u64> {
        let AddressReserve { bytes, alignment, address } = request;
        self.open(ADDRESS_OWNER)?;
        let heap = self.heap(ADDRESS_OWNER)?;
        let granularity = heap.granularity();
        if bytes == 0
            || !bytes.is_multiple_of(granularity)
            || (alignment != 0 && !alignment.is_power_of_two())
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let at = heap.take_addresses(bytes, alignment.max(granularity), address)?;
        let reservation = Reservation { bytes, device: ADDRESS_OWNER };
        self.virtual_memory.reservations.insert(at, reservation);
        Ok(at)
    }

    pub(super) fn free_addresses(&mut self, request: AddressFree) -> Result<()> {
        if self.has_pinned(request.address, request.bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let reservation = self.virtual_memory.unreserve(request.address, request.bytes)?;
        self.heap(reservation.device)?.give_addresses(request.address, reservation.bytes);
        Ok(())
    }

    pub(super) fn create_physical(&mut self, request: PhysicalCreate) -> Result<()> {
        let PhysicalCreate { device, id, bytes } = request;
        let device = usize::from(device);
        self.bind(device)?;
        let memory = self.with_memory(device, |client| client.on(device)?.memory_create(bytes))?;
        let physical = Physical { device, bytes, memory, id: Some(id), mappings: 0 };
        let added = self.virtual_memory.add(physical, None).inspect_err(|_| {
            let _ = self.on(device).and_then(|device| device.memory_release(memory));
        });
        added.map(drop)
    }

    pub(super) fn release_physical(&mut self, id: u32) -> Result<()> {
        match self.virtual_memory.release(id)? {
            Some(physical) => {
                self.sweep_physical();
                self.on(physical.device)?.memory_release(physical.memory)
            }
            None => Ok(()),
        }
    }

    pub(super) fn map_physical(&mut self, request: PhysicalMap) -> Result<()> {
        let PhysicalMap { address, bytes, id } = request;
        let serial = self.virtual_memory.mappable(address, bytes, id)?;
        if self.has_pinned(address, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.map_at(address, bytes, serial, Access::None)
    }

    /// Maps a handle and sets its protection.
    pub(crate) fn map_at(&mut self, address: u64, bytes: u64, serial: u64, access: Access) -> Result<()> {
        let Physical { device, memory, .. } =
            *self.virtual_memory.physical.get(&serial).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let gpu = self.on(device)?;
        gpu.map(address, bytes, memory)?;
        if access != Access::None {
            gpu.protect(address, bytes, access)?;
        }
        self.virtual_memory.note_mapping(address, Mapping { bytes, serial, access });
        Ok(())
    }

    /// The range may be made of several mappings, each whole.
    pub(super) fn unmap_physical(&mut self, request: PhysicalUnmap) -> Result<()> {
        self.finish_assumed()?;
        for (address, mapping) in self.virtual_memory.within(request.address, request.bytes)? {
            let device = self.virtual_memory.device_of(&mapping).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            self.bind(device)?;
            self.heap(device)?.await_copies()?;
            self.on(device)?.unmap(address, mapping.bytes)?;
            if let Some(unused) = self.virtual_memory.forget_mapping(address) {
                self.sweep_physical();
                self.on(unused.device)?.memory_release(unused.memory)?;
            }
        }
        Ok(())
    }

    pub(super) fn protect_physical(&mut self, request: PhysicalProtect) -> Result<()> {
        let PhysicalProtect { address, bytes, access, .. } = request;
        let access = match access {
            0 => Access::None,
            1 => Access::Read,
            3 => Access::ReadWrite,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        self.finish_assumed()?;
        for (address, mapping) in self.virtual_memory.within(address, bytes)? {
            let device = self.virtual_memory.device_of(&mapping).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            self.bind(device)?;
            self.heap(device)?.await_copies()?;
            self.on(device)?.protect(address, mapping.bytes, access)?;
            if let Some(mapping) = self.virtual_memory.mappings.get_mut(&address) {
                mapping.access = access;
            }
        }
        Ok(())
    }
}
