//! Addresses, physical memory, and mapping the one to the other.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::types::{LOCATION_DEVICE, MemAccessDesc, MemAllocationProp, MemLocation};
use rekindle_cuda::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_UNKNOWN,
};
use rekindle_protocol::ipc::{HANDLE_BYTES, Kind as Shared};
use rekindle_protocol::operation::{
    AddressFree, AddressReserve, Id, PhysicalCreate, PhysicalExport, PhysicalImport, PhysicalMap,
    PhysicalProtect, PhysicalRelease, PhysicalUnmap,
};

use crate::abi::{Handle, In, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::refusal::rejected;
use crate::shareable::{self, POSIX_DESCRIPTOR};
use crate::{capture, context, context_state, device, lane, session};

use super::host_memory;
use super::managed::HOST;
use super::map::{self, Purpose};

struct Physical {
    id: Id,
    device: u8,
    bytes: u64,
    properties: Properties,
    references: AtomicU32,
    released: AtomicBool,
    /// Of the host's memory that is not mapped: its contents, where it had been mapped before.
    kept: Mutex<Option<Vec<u8>>>,
}

impl Physical {
    fn new(id: Id, device: u8, bytes: u64, properties: MemAllocationProp) -> Physical {
        let (references, released) = (AtomicU32::new(1), AtomicBool::new(false));
        Physical {
            id,
            device,
            bytes,
            properties: Properties(properties),
            references,
            released,
            kept: Mutex::new(None),
        }
    }

    fn is_host(&self) -> bool {
        self.properties.0.location.kind != LOCATION_DEVICE
    }

    fn kept(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy)]
struct Properties(MemAllocationProp);

// SAFETY: the only pointer in it belongs to another operating system and is never followed.
unsafe impl Send for Properties {}
// SAFETY: as above.
unsafe impl Sync for Properties {}

impl Object for Physical {
    const KIND: Kind = Kind::Physical;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

/// What was exported, by the handles that others read: the exporter itself gets its own handle again.
static EXPORTED: Mutex<BTreeMap<[u8; HANDLE_BYTES], Handle>> = Mutex::new(BTreeMap::new());

static NEXT: AtomicU32 = AtomicU32::new(0);

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: u32 = 1;

fn properties(properties: In<MemAllocationProp>) -> Result<MemAllocationProp> {
    let properties = properties.get()?;
    if properties.kind != PINNED {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    match properties.location.kind {
        LOCATION_DEVICE => device::info(properties.location.id).map(drop)?,
        kind if HOST.contains(&kind) => {}
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    Ok(properties)
}

/// Every mapping in the range, which they must fill from its start to its end.
fn mappings(address: u64, bytes: u64) -> Result<Vec<map::Allocation>> {
    let mut next = address;
    let found = map::within(address, bytes);
    for mapping in &found {
        if mapping.address != next || mapping.purpose.handle().is_none() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        next += mapping.bytes;
    }
    if next == address + bytes && bytes != 0 { Ok(found) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn drop_reference(handle: Handle) -> Result<()> {
    let physical = arena::get::<Physical>(handle)?;
    if physical.references.fetch_sub(1, Ordering::AcqRel) == 1 {
        if !physical.is_host() {
            lane::ask(&PhysicalRelease { id: physical.id })?;
        }
        exported().retain(|_, exported| *exported != handle);
        arena::remove::<Physical>(handle)?;
    }
    Ok(())
}

fn exported() -> MutexGuard<'static, BTreeMap<[u8; HANDLE_BYTES], Handle>> {
    EXPORTED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn export(out: Out<i32>, handle: Handle, kind: u32, flags: u64) -> Result<()> {
    out.check()?;
    shareable::check_kind("cuMemExportToShareableHandle", kind)?;
    let physical = arena::get::<Physical>(handle).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    if flags != 0 || physical.properties.0.handle_types & kind == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let shared = lane::ask(&PhysicalExport { id: physical.id })?;
    let shared: [u8; HANDLE_BYTES] = shared.try_into().map_err(|_| CUDA_ERROR_UNKNOWN)?;
    exported().insert(shared, handle);
    shareable::put(out, &shared)
}

fn import(out: Out<Handle>, descriptor: *const c_void, kind: u32) -> Result<()> {
    const NAME: &str = "cuMemImportFromShareableHandle";
    out.check()?;
    shareable::check_kind(NAME, kind)?;
    let shared = shareable::read(NAME, descriptor, Shared::Physical)?;
    let known = exported().get(&shared).copied();
    if let Some(handle) = known {
        let physical = arena::get::<Physical>(handle)?;
        physical.references.fetch_add(1, Ordering::AcqRel);
        physical.released.store(false, Ordering::Release);
        return out.put(handle);
    }
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let asked = lane::ask(&PhysicalImport { id, handle: &shared });
    let (device, bytes) = asked.map_err(|code| match code {
        CUDA_ERROR_INVALID_VALUE => shareable::not_ours(NAME, code),
        code => code,
    })?;
    let properties = MemAllocationProp {
        kind: PINNED,
        handle_types: kind,
        location: MemLocation { kind: LOCATION_DEVICE, id: device.into() },
        win32: std::ptr::null_mut(),
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    };
    out.put(arena::insert(Physical::new(id, device, bytes, properties))?)
}

/// Maps a handle of the host's memory.
fn map_host(physical: &Physical, handle: Handle, address: u64) -> Result<()> {
    let purpose = Purpose::MappedHost { handle };
    if map::within(0, u64::MAX).iter().any(|a| a.purpose == purpose) {
        return Err(rejected(
            "cuMemMap",
            CUDA_ERROR_NOT_SUPPORTED,
            "memory of the host is mapped once at a time",
        ));
    }
    host_memory::map(physical.device, address, physical.bytes, physical.kept().as_deref())?;
    *physical.kept() = None;
    map::note_on(physical.device, address, physical.bytes, purpose);
    Ok(())
}

fn unmap(mapping: map::Allocation) -> Result<()> {
    let map::Allocation { address, bytes, .. } = mapping;
    let handle = mapping.purpose.handle().ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let physical = arena::get::<Physical>(handle)?;
    if physical.is_host() {
        let is_left = physical.references.load(Ordering::Acquire) > 1;
        *physical.kept() = host_memory::unmap(address, bytes, is_left)?;
    } else {
        lane::ask(&PhysicalUnmap { address, bytes })?;
    }
    map::take(address, |_| true)?;
    drop_reference(handle)
}

exports! {
    call fn cuMemExportToShareableHandle(out: Out<i32>, handle: Handle, kind: u32, flags: u64) { export(out, handle, kind, flags) }
    call fn cuMemImportFromShareableHandle(out: Out<Handle>, descriptor: *const c_void, kind: u32) { import(out, descriptor, kind) }
    call fn cuMemAddressReserve(out: Out<u64>, bytes: usize, alignment: usize, address: u64, flags: u64) {
        out.check()?;
        let granularity = session::get()?.welcome.granularity;
        let bytes = bytes as u64;
        if bytes == 0 || !bytes.is_multiple_of(granularity) || flags != 0 || !alignment.is_power_of_two() && alignment != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        out.put(lane::ask(&AddressReserve { bytes, alignment: alignment as u64, address })?)
    }
    call fn cuMemAddressFree(address: u64, bytes: usize) { lane::ask(&AddressFree { address, bytes: bytes as u64 }) }
    call fn cuMemCreate(out: Out<Handle>, bytes: usize, wanted: In<MemAllocationProp>, flags: u64) {
        out.check()?;
        let properties = properties(wanted)?;
        let bytes = bytes as u64;
        let is_host = properties.location.kind != LOCATION_DEVICE;
        if is_host && properties.handle_types != 0 {
            // NCCL goes without, so that it is nothing for which the program would be better off in another mode.
            let reason = "memory of the host that is made so is not shared with other processes";
            return Err(rejected("cuMemCreate", CUDA_ERROR_NOT_SUPPORTED, reason));
        }
        if properties.handle_types & !POSIX_DESCRIPTOR != 0 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        if flags != 0 || bytes == 0 || !bytes.is_multiple_of(session::get()?.welcome.granularity) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        if is_host {
            return out.put(arena::insert(Physical::new(id, context::device()?, bytes, properties))?);
        }
        let device = properties.location.id as u8;
        session::get()?.sticky_error(device)?;
        if bytes > session::get()?.device(device.into())?.total_memory {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        lane::ask(&PhysicalCreate { device, id, bytes })?;
        out.put(arena::insert(Physical::new(id, device, bytes, properties))?)
    }
    call fn cuMemRelease(handle: Handle) {
        let physical = arena::get::<Physical>(handle)?;
        if physical.released.load(Ordering::Acquire) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // References beyond the mappings' are the program's own; with the last of those the handle is spent.
        let mapped = map::within(0, u64::MAX).iter().filter(|a| a.purpose.handle() == Some(handle)).count() as u32;
        if physical.references.load(Ordering::Acquire) == mapped + 1 {
            physical.released.store(true, Ordering::Release);
        }
        drop_reference(handle)
    }
    call fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: Handle, flags: u64) {
        let physical = arena::get::<Physical>(handle)?;
        if flags != 0 || physical.released.load(Ordering::Acquire) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // Devices map a handle whole.
        if offset != 0 || bytes as u64 != physical.bytes {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        if map::find(address).is_some() || !map::within(address, bytes as u64).is_empty() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if physical.is_host() {
            map_host(physical, handle, address)?;
        } else {
            lane::ask(&PhysicalMap { address, bytes: bytes as u64, id: physical.id })?;
            map::note_on(physical.device, address, bytes as u64, Purpose::Mapped { handle });
        }
        physical.references.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
    call fn cuMemUnmap(address: u64, bytes: usize) {
        let mappings = mappings(address, bytes as u64)?;
        // The driver lets work that was enqueued before finish; a capture is none of its business.
        if let Some(mapping) = mappings.first().filter(|_| !capture::any()) {
            context_state::synchronize(mapping.device)?;
        }
        mappings.into_iter().try_for_each(unmap)
    }
    call fn cuMemSetAccess(address: u64, bytes: usize, wanted: In<MemAccessDesc>, count: usize) {
        let wanted = wanted.slice(count)?;
        for mapping in mappings(address, bytes as u64)? {
            for MemAccessDesc { location, flags } in wanted.iter().copied() {
                let is_host = matches!(mapping.purpose, Purpose::MappedHost { .. });
                if !matches!(flags, 0 | 1 | 3) || location.kind != LOCATION_DEVICE && !(is_host && HOST.contains(&location.kind)) {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                // All GPUs and the program reach that as soon as it is mapped.
                if is_host {
                    continue;
                }
                device::info(location.id)?;
                let device = u8::try_from(location.id).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
                lane::ask(&PhysicalProtect { device, address: mapping.address, bytes: mapping.bytes, access: flags })?;
            }
        }
        Ok(())
    }
    ready fn cuMemGetAccess(out: Out<u64>, location: In<MemLocation>, address: u64) {
        let location = location.get()?;
        let mapping = map::find(address).filter(|a| a.purpose.handle().is_some());
        let mapping = mapping.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if matches!(mapping.purpose, Purpose::MappedHost { .. }) {
            return out.put(3);
        }
        out.put(if location.kind == LOCATION_DEVICE && location.id == i32::from(mapping.device) { 3 } else { 0 })
    }
    ready fn cuMemGetAllocationGranularity(out: Out<usize>, wanted: In<MemAllocationProp>, _option: u32) {
        properties(wanted)?;
        out.put(session::get()?.welcome.granularity as usize)
    }
    ready fn cuMemGetAllocationPropertiesFromHandle(out: Out<MemAllocationProp>, handle: Handle) {
        out.put(arena::get::<Physical>(handle)?.properties.0)
    }
    ready fn cuMemRetainAllocationHandle(out: Out<Handle>, address: u64) {
        out.check()?;
        match map::find(address).and_then(|a| a.purpose.handle()) {
            Some(handle) => {
                let physical = arena::get::<Physical>(handle)?;
                physical.references.fetch_add(1, Ordering::AcqRel);
                physical.released.store(false, Ordering::Release);
                out.put(handle)
            }
            None => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}
