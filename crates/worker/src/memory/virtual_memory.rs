//! Memory that the program makes, places and protects itself (`cuMemCreate`, `cuMemAddressReserve`, `cuMemMap`).
//!
//! A handle that the program released lives on while it is mapped, as the driver has it; so handles are known here by
//! a serial number that is never used twice, and the program's id leads to it only until the release.

use std::collections::{BTreeMap, HashMap};

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{Access, Device, Memory, Result};
use rekindle_protocol::operation::Id;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Physical {
    pub device: usize,
    pub bytes: u64,
    pub memory: Memory,
    pub id: Option<Id>,
    pub mappings: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub bytes: u64,
    /// Of the handle.
    pub serial: u64,
    pub access: Access,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub bytes: u64,
    /// Whose heap the addresses came from.
    pub device: usize,
}

#[derive(Default)]
pub(crate) struct VirtualMemory {
    pub physical: BTreeMap<u64, Physical>,
    pub reservations: BTreeMap<u64, Reservation>,
    pub mappings: BTreeMap<u64, Mapping>,
    ids: HashMap<Id, u64>,
    next: u64,
}

impl VirtualMemory {
    /// Takes a handle in, and gives its serial number; `serial` is given when an image has one for it.
    pub(crate) fn add(&mut self, physical: Physical, serial: Option<u64>) -> Result<u64> {
        let serial = serial.unwrap_or(self.next);
        if let Some(id) = physical.id {
            if self.ids.contains_key(&id) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            self.ids.insert(id, serial);
        }
        self.next = self.next.max(serial + 1);
        self.physical.insert(serial, physical);
        Ok(serial)
    }

    pub(crate) fn serial(&self, id: Id) -> Option<u64> {
        self.ids.get(&id).copied()
    }

    /// The program lets go of a handle. Gives the memory if nothing maps it any more.
    pub(crate) fn release(&mut self, id: Id) -> Result<Option<Physical>> {
        let serial = self.ids.remove(&id).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if let Some(physical) = self.physical.get_mut(&serial) {
            physical.id = None;
        }
        Ok(self.unused(serial))
    }

    fn unused(&mut self, serial: u64) -> Option<Physical> {
        let physical = self.physical.get(&serial)?;
        if physical.id.is_none() && physical.mappings == 0 { self.physical.remove(&serial) } else { None }
    }

    /// Checks that a handle can be mapped there, and gives its serial number.
    pub(crate) fn mappable(&self, address: u64, bytes: u64, id: Id) -> Result<u64> {
        let serial = *self.ids.get(&id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let physical = self.physical.get(&serial).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if bytes == physical.bytes && self.is_free(address, bytes) {
            Ok(serial)
        } else {
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    }

    /// Whether these addresses are in a reservation, and no handle is mapped there.
    pub(crate) fn is_free(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let reserved = self.reservations.range(..=address).next_back();
        let inside = reserved.is_some_and(|(at, reservation)| end <= at + reservation.bytes);
        let last = self.mappings.range(..end).next_back();
        inside && last.is_none_or(|(at, other)| at + other.bytes <= address)
    }

    pub(crate) fn note_mapping(&mut self, address: u64, mapping: Mapping) {
        if let Some(physical) = self.physical.get_mut(&mapping.serial) {
            physical.mappings += 1;
        }
        self.mappings.insert(address, mapping);
    }

    /// The mappings that a range is made of, without gap at its ends or between.
    pub(crate) fn within(&self, address: u64, bytes: u64) -> Result<Vec<(u64, Mapping)>> {
        let end = address.checked_add(bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let found: Vec<_> = self.mappings.range(address..end).map(|(at, mapping)| (*at, *mapping)).collect();
        let mut reached = address;
        for (at, mapping) in &found {
            if *at != reached {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            reached += mapping.bytes;
        }
        if reached == end && !found.is_empty() { Ok(found) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Forgets a mapping. Gives the memory if the program had released it and this was the last one.
    pub(crate) fn forget_mapping(&mut self, address: u64) -> Option<Physical> {
        let mapping = self.mappings.remove(&address)?;
        self.physical.get_mut(&mapping.serial)?.mappings -= 1;
        self.unused(mapping.serial)
    }

    pub(crate) fn device_of(&self, mapping: &Mapping) -> Option<usize> {
        self.physical.get(&mapping.serial).map(|physical| physical.device)
    }

    /// The mapping that holds an address.
    pub(crate) fn holding(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (at, mapping) = self.mappings.range(..=address).next_back()?;
        (address - at < mapping.bytes).then_some((*at, mapping))
    }

    /// Gives up a reservation in which nothing is mapped.
    pub(crate) fn unreserve(&mut self, address: u64, bytes: u64) -> Result<Reservation> {
        let reservation = *self.reservations.get(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mapped = self.mappings.range(address..address + reservation.bytes).next().is_some();
        if reservation.bytes != bytes || mapped {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.reservations.remove(&address);
        Ok(reservation)
    }

    /// Unmaps and frees what belongs to a device.
    pub(crate) fn clear(&mut self, index: usize, device: &dyn Device) -> Result<()> {
        let mine = |physical: &Physical| physical.device == index;
        let serials: Vec<u64> = self.physical.iter().filter(|row| mine(row.1)).map(|row| *row.0).collect();
        for serial in serials {
            let at: Vec<_> =
                self.mappings.iter().filter(|row| row.1.serial == serial).map(|row| *row.0).collect();
            for at in at {
                if let Some(mapping) = self.mappings.remove(&at) {
                    device.unmap(at, mapping.bytes)?;
                }
            }
            if let Some(physical) = self.physical.remove(&serial) {
                if let Some(id) = physical.id {
                    self.ids.remove(&id);
                }
                device.memory_release(physical.memory)?;
            }
        }
        Ok(())
    }
}
