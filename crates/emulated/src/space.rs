//! The addresses that devices use: reservations, mappings of physical memory, module memory and registered host memory.
//!
//! One space serves all devices of a platform, so that copies between devices and kernels that read a peer's memory
//! need nothing more. Invariants: a mapping lies in one reservation; mappings, and the host ranges, do not overlap;
//! what the tables say of a mapping's access is what its pages have.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use parking_lot::RwLock;
use rekindle_cuda::{
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY,
};
use rekindle_device::{Access, DEVICE_RANGE, Memory, PINNED_RANGE, Result};
use rekindle_ptx::AddressRange;

use crate::access;
use crate::physical::{Memories, Physical};

/// Sizes and addresses of device memory are multiples of this.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// What an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressKind {
    Device,
    Host,
}

struct Mapping {
    end: u64,
    _memory: Arc<Physical>,
    access: Access,
}

struct HostRange {
    end: u64,
    /// Bit per device that registered it.
    devices: u32,
}

#[derive(Default)]
struct Tables {
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    /// Memory of loaded modules, readable and writable.
    modules: BTreeMap<u64, u64>,
    hosts: BTreeMap<u64, HostRange>,
    handles: HashMap<u64, Arc<Physical>>,
    next: u64,
}

#[derive(Default)]
pub(crate) struct Space {
    tables: RwLock<Tables>,
    pub memories: Memories,
}

impl Space {
    pub fn reserve(&self, address: u64, bytes: u64) -> Result<()> {
        let end = checked_end(address, bytes)?;
        if address < DEVICE_RANGE.start || end > DEVICE_RANGE.end {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut tables = self.tables.write();
        map_empty(address, bytes, libc::MAP_FIXED_NOREPLACE)?;
        tables.reservations.insert(address, end);
        Ok(())
    }

    pub fn unreserve(&self, address: u64, bytes: u64) -> Result<()> {
        let end = checked_end(address, bytes)?;
        let mut tables = self.tables.write();
        if tables.reservations.get(&address) != Some(&end)
            || tables.mappings.range(address..end).next().is_some()
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        tables.reservations.remove(&address);
        // SAFETY: the range is a reservation of this space with nothing mapped in it.
        unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
        Ok(())
    }

    /// A handle for physical memory.
    pub fn add(&self, memory: Arc<Physical>) -> Memory {
        let mut tables = self.tables.write();
        tables.next += 1;
        let handle = tables.next;
        tables.handles.insert(handle, memory);
        Memory(handle)
    }

    pub fn physical(&self, handle: Memory) -> Result<Arc<Physical>> {
        self.tables.read().handles.get(&handle.0).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// The memory lives on while it is mapped.
    pub fn release(&self, handle: Memory) -> Result<()> {
        let removed = self.tables.write().handles.remove(&handle.0);
        removed.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub fn map(&self, address: u64, bytes: u64, handle: Memory) -> Result<()> {
        let end = checked_end(address, bytes)?;
        let mut tables = self.tables.write();
        let memory = tables.handles.get(&handle.0).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let reserved =
            tables.reservations.range(..=address).next_back().is_some_and(|(_, last)| end <= *last);
        if memory.bytes() != bytes
            || !reserved
            || tables.mappings.range(..end).next_back().is_some_and(|m| m.1.end > address)
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        map_file(address, &memory, libc::PROT_NONE)?;
        tables.mappings.insert(address, Mapping { end, _memory: memory, access: Access::None });
        Ok(())
    }

    pub fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        let end = checked_end(address, bytes)?;
        let mut tables = self.tables.write();
        let starts = tables.whole_mappings(address, end).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        map_empty(address, bytes, libc::MAP_FIXED)?;
        for start in starts {
            tables.mappings.remove(&start);
        }
        Ok(())
    }

    pub fn protect(&self, address: u64, bytes: u64, access: Access) -> Result<()> {
        let end = checked_end(address, bytes)?;
        let mut tables = self.tables.write();
        let starts = tables.whole_mappings(address, end).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let protection = match access {
            Access::None => libc::PROT_NONE,
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: the range is covered by mappings of this space; no Rust reference points into device memory.
        if unsafe { libc::mprotect(address as *mut libc::c_void, bytes as usize, protection) } != 0 {
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        for start in starts {
            if let Some(mapping) = tables.mappings.get_mut(&start) {
                mapping.access = access;
            }
        }
        Ok(())
    }

    pub fn add_module(&self, range: std::ops::Range<u64>) {
        self.tables.write().modules.insert(range.start, range.end);
    }

    pub fn remove_module(&self, start: u64) {
        self.tables.write().modules.remove(&start);
    }

    /// A range can be registered with several devices, and then is one range to all.
    pub fn register(&self, address: u64, bytes: u64, device: u32) -> Result<()> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if !access::is_mapped(address, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut tables = self.tables.write();
        if let Some(range) = tables.hosts.get_mut(&address)
            && range.end == end
            && range.devices & 1 << device == 0
        {
            range.devices |= 1 << device;
            return Ok(());
        }
        if tables.hosts.range(..end).next_back().is_some_and(|(_, range)| range.end > address) {
            return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        tables.hosts.insert(address, HostRange { end, devices: 1 << device });
        Ok(())
    }

    pub fn unregister(&self, address: u64, device: u32) -> Result<()> {
        let mut tables = self.tables.write();
        let range = tables.hosts.get_mut(&address).filter(|range| range.devices & 1 << device != 0);
        let range = range.ok_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
        range.devices &= !(1 << device);
        if range.devices == 0 {
            tables.hosts.remove(&address);
        }
        Ok(())
    }

    /// What a whole range is; nothing where a part of it is neither mapped device memory nor registered host memory.
    pub fn place(&self, address: u64, bytes: u64) -> Option<AddressKind> {
        let end = address.checked_add(bytes)?;
        let tables = self.tables.read();
        if DEVICE_RANGE.contains(&address) {
            let modules = tables.modules.range(..=address).next_back();
            let covered =
                modules.is_some_and(|(_, last)| end <= *last) || tables.mapped(address, end).is_some();
            return covered.then_some(AddressKind::Device);
        }
        covers(address, end, |at| tables.hosts.range(..=at).next_back().map(|(_, range)| range.end))
            .then_some(AddressKind::Host)
    }

    /// Runs `f` while the range keeps its mapping, if it is mapped for that access.
    pub fn with_mapped<T>(&self, address: u64, bytes: u64, write: bool, f: impl FnOnce() -> T) -> Option<T> {
        let end = address.checked_add(bytes)?;
        let tables = self.tables.read();
        let allowed = if DEVICE_RANGE.contains(&address) {
            let module = tables.modules.range(..=address).next_back().is_some_and(|(_, last)| end <= *last);
            module
                || match tables.mapped(address, end) {
                    Some(Access::ReadWrite) => true,
                    Some(Access::Read) => !write,
                    Some(Access::None) | None => false,
                }
        } else {
            tables.hosts.range(..=address).next_back().is_some_and(|(_, range)| end <= range.end)
        };
        allowed.then(f)
    }

    /// The ranges that kernels may touch.
    pub fn kernel_ranges(&self) -> Vec<AddressRange> {
        let whole = [DEVICE_RANGE, PINNED_RANGE];
        let tables = self.tables.read();
        let hosts = tables.hosts.iter().map(|(start, range)| *start..range.end);
        let outside =
            hosts.filter(|host| !(PINNED_RANGE.contains(&host.start) && host.end <= PINNED_RANGE.end));
        whole
            .into_iter()
            .chain(outside)
            .map(|range| AddressRange { start: range.start, end: range.end })
            .collect()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        for (start, end) in &self.tables.get_mut().reservations {
            // SAFETY: a reservation of this space; its devices, and with them all work, are gone.
            unsafe { libc::munmap(*start as *mut libc::c_void, (end - start) as usize) };
        }
    }
}

impl Tables {
    /// Where the mappings start that together are exactly `address..end`.
    fn whole_mappings(&self, address: u64, end: u64) -> Option<Vec<u64>> {
        let mut starts = Vec::new();
        let mut at = address;
        while at < end {
            starts.push(at);
            at = self.mappings.get(&at)?.end;
        }
        (at == end).then_some(starts)
    }

    /// The least access of the mappings that cover a range, if they cover all of it.
    fn mapped(&self, address: u64, end: u64) -> Option<Access> {
        let mut least = Access::ReadWrite;
        let covered = covers(address, end, |at| {
            let (_, mapping) = self.mappings.range(..=at).next_back()?;
            if mapping.end > at && (least == Access::ReadWrite || mapping.access == Access::None) {
                least = mapping.access;
            }
            Some(mapping.end)
        });
        covered.then_some(least)
    }
}

/// Whether ranges without holes between cover `address..end`; `end_at` is where the range that holds an address ends.
fn covers(address: u64, end: u64, mut end_at: impl FnMut(u64) -> Option<u64>) -> bool {
    let mut at = address;
    loop {
        match end_at(at) {
            Some(next) if next > at => at = next,
            _ => return false,
        }
        if at >= end {
            return true;
        }
    }
}

fn checked_end(address: u64, bytes: u64) -> Result<u64> {
    let aligned = bytes > 0 && address.is_multiple_of(GRANULARITY) && bytes.is_multiple_of(GRANULARITY);
    address.checked_add(bytes).filter(|_| aligned).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Takes addresses without giving them any access.
fn map_empty(address: u64, bytes: u64, fixed: i32) -> Result<()> {
    // SAFETY: with MAP_FIXED_NOREPLACE nothing that exists is touched; with MAP_FIXED the range is this space's own.
    let found = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed,
            -1,
            0,
        )
    };
    check_address(found, address, bytes)
}

fn map_file(address: u64, memory: &Physical, protection: i32) -> Result<()> {
    // SAFETY: the range is this space's reservation and nothing is mapped in it.
    let found = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            memory.bytes() as usize,
            protection,
            libc::MAP_SHARED | libc::MAP_FIXED,
            memory.file().as_raw_fd(),
            0,
        )
    };
    check_address(found, address, memory.bytes())
}

fn check_address(found: *mut libc::c_void, address: u64, bytes: u64) -> Result<()> {
    if found as u64 == address {
        return Ok(());
    }
    if found != libc::MAP_FAILED {
        // SAFETY: a kernel that does not know MAP_FIXED_NOREPLACE made this mapping elsewhere just now.
        unsafe { libc::munmap(found, bytes as usize) };
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EEXIST | libc::ENOMEM) => Err(CUDA_ERROR_OUT_OF_MEMORY),
        _ => Err(CUDA_ERROR_OPERATING_SYSTEM),
    }
}
