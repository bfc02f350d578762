//! Memory pools: attributes are kept here; the worker has one pool for each device.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::types::{LOCATION_DEVICE, MemAccessDesc, MemLocation, MemPoolProps};
use rekindle_cuda::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_UNKNOWN,
};
use rekindle_protocol::ipc::{HANDLE_BYTES, Handle as Shared, Kind as SharedKind, Source};
use rekindle_protocol::operation::{
    IpcMemoryClose, IpcMemoryExport, IpcMemoryOpen, MemoryAllocateAsync, MemoryFree, MemoryFreeAsync,
    PoolTrim,
};

use crate::abi::{Handle, In, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::shareable::{self, POSIX_DESCRIPTOR};
use crate::stream::{self, resolve};
use crate::{context, device, graph, lane, session};

use super::map::{self, Allocation, Purpose};
use super::pinned;
use super::pool_memory::PoolMemory;

struct Pool {
    device: u8,
    default: bool,
    /// `CUmemAllocationHandleType`s that it may be exported as.
    handle_types: u32,
    /// Another process's: allocations of it come by [`import_pointer`].
    imported: bool,
    reuse: [AtomicU64; 3],
    memory: Mutex<PoolMemory>,
}

impl Object for Pool {
    const KIND: Kind = Kind::Pool;
    fn device(&self) -> Option<u8> {
        None
    }
}

impl Pool {
    fn memory(&self) -> MutexGuard<'_, PoolMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Default and current pool of each device.
static POOLS: Mutex<[(Handle, Handle); 8]> = Mutex::new([(Handle::NULL, Handle::NULL); 8]);

fn make(device: u8, default: bool, handle_types: u32, imported: bool) -> Result<Handle> {
    let reuse = [1; 3].map(AtomicU64::new);
    arena::insert(Pool { device, default, handle_types, imported, reuse, memory: Mutex::default() })
}

fn pools(device: i32) -> Result<(Handle, Handle)> {
    device::info(device)?;
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = pools.get_mut(device as usize).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
    if entry.0.is_null() {
        let pool = make(device as u8, true, 0, false)?;
        *entry = (pool, pool);
    }
    Ok(*entry)
}

fn set_pool(device: i32, pool: Handle) -> Result<()> {
    pools(device)?;
    let object = arena::get::<Pool>(pool)?;
    if i32::from(object.device) != device || object.imported {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    pools[device as usize].1 = pool;
    Ok(())
}

fn allocate(out: Out<u64>, bytes: usize, pool: Option<Handle>, stream: Handle) -> Result<()> {
    out.check()?;
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let target = resolve(stream)?;
    let handle = match pool {
        Some(pool) => pool,
        None => pools(target.device.into())?.1,
    };
    let pool = arena::get::<Pool>(handle)?;
    if pool.imported {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let bytes = bytes as u64;
    if bytes > session::get()?.device(pool.device.into())?.total_memory {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let capture = stream::capture(target)?;
    if capture.status != 0 {
        return out.put(graph::memory::capture_allocation(target, capture.id, bytes)?);
    }
    let address = lane::ask(&MemoryAllocateAsync { device: pool.device, bytes, stream: target.id })?;
    pool.memory().take(bytes);
    map::note(address, bytes, Purpose::Pooled { pool: handle })?;
    out.put(address)
}

fn free(address: u64, stream: Handle) -> Result<()> {
    let target = resolve(stream)?;
    if address == 0 {
        return Ok(());
    }
    if graph::memory::is_graph_s(address) {
        let capture = stream::capture(target)?;
        return match capture.status {
            0 => graph::memory::free(address),
            _ => graph::memory::capture_free(target, capture.id, address),
        };
    }
    let freed = map::take(address, |a| {
        let of_pool = matches!(a.purpose, Purpose::Pooled { .. } | Purpose::PoolImport { .. });
        of_pool || matches!(a.purpose, Purpose::Device | Purpose::Managed)
    })?;
    match freed.purpose {
        Purpose::Pooled { pool } => {
            if let Ok(pool) = arena::get::<Pool>(pool) {
                pool.memory().free(freed.bytes);
            }
            lane::post(&MemoryFreeAsync { device: freed.device, address, stream: target.id }, &[])
        }
        Purpose::PoolImport { .. } => close(freed),
        Purpose::Managed => pinned::release(freed),
        _ => lane::ask(&MemoryFree { device: freed.device, address }),
    }
}

/// Lets go of what another process allocated. It stays noted as long as it is open once more.
pub fn close(import: Allocation) -> Result<()> {
    if !lane::ask(&IpcMemoryClose { device: import.device, address: import.address, all: false })? {
        map::note(import.address, import.bytes, import.purpose)?;
    }
    Ok(())
}

fn export(out: Out<i32>, pool: Handle, kind: u32, flags: u64) -> Result<()> {
    out.check()?;
    shareable::check_kind("cuMemPoolExportToShareableHandle", kind)?;
    let object = arena::get::<Pool>(pool).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    if flags != 0 || object.handle_types & kind == 0 || object.imported {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let source = Source { key: session::get()?.process.into(), number: pool.0 as u64 };
    let shared = Shared { kind: SharedKind::Pool, source, offset: object.device.into(), bytes: 0 };
    shareable::put(out, &shared.encode())
}

fn import(out: Out<Handle>, descriptor: *const c_void, kind: u32, flags: u64) -> Result<()> {
    const NAME: &str = "cuMemPoolImportFromShareableHandle";
    out.check()?;
    shareable::check_kind(NAME, kind)?;
    let bytes = shareable::read(NAME, descriptor, SharedKind::Pool)?;
    let shared = Shared::decode(&bytes, SharedKind::Pool).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let device = u8::try_from(shared.offset).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
    device::info(device.into())?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.put(make(device, false, kind, true)?)
}

/// `CUmemPoolPtrExportData`.
type PointerData = [u8; HANDLE_BYTES];

fn export_pointer(out: Out<PointerData>, address: u64) -> Result<()> {
    out.check()?;
    let allocation = map::at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let Purpose::Pooled { pool } = allocation.purpose else { return Err(CUDA_ERROR_INVALID_VALUE) };
    if arena::get::<Pool>(pool)?.handle_types & POSIX_DESCRIPTOR == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let handle = lane::ask(&IpcMemoryExport { device: allocation.device, address })?;
    out.put(handle.try_into().map_err(|_| CUDA_ERROR_UNKNOWN)?)
}

fn import_pointer(out: Out<u64>, pool: Handle, data: In<PointerData>) -> Result<()> {
    out.check()?;
    let object = arena::get::<Pool>(pool).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    if !object.imported {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    context::open(object.device)?;
    let (address, bytes) = lane::ask(&IpcMemoryOpen { device: object.device, handle: &data.get()? })?;
    if map::at(address).is_none() {
        map::note(address, bytes, Purpose::PoolImport { pool })?;
    }
    out.put(address)
}

fn location_device(location: In<MemLocation>) -> Result<i32> {
    let location = location.get()?;
    if location.kind == LOCATION_DEVICE { Ok(location.id) } else { Err(CUDA_ERROR_NOT_SUPPORTED) }
}

/// Attributes of 4 bytes (the three about reuse); the others have 8.
const FIRST_WIDE: u32 = 4;

exports! {
    call fn cuMemPoolExportToShareableHandle(out: Out<i32>, pool: Handle, kind: u32, flags: u64) { export(out, pool, kind, flags) }
    call fn cuMemPoolImportFromShareableHandle(out: Out<Handle>, descriptor: *const c_void, kind: u32, flags: u64) {
        import(out, descriptor, kind, flags)
    }
    call fn cuMemPoolExportPointer(out: Out<PointerData>, address: u64) { export_pointer(out, address) }
    call fn cuMemPoolImportPointer(out: Out<u64>, pool: Handle, data: In<PointerData>) { import_pointer(out, pool, data) }
    call fn cuMemAllocAsync | cuMemAllocAsync_ptsz [stream] (out: Out<u64>, bytes: usize, stream: Handle) { allocate(out, bytes, None, stream) }
    call fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz [stream] (out: Out<u64>, bytes: usize, pool: Handle, stream: Handle) {
        allocate(out, bytes, Some(pool), stream)
    }
    call fn cuMemFreeAsync | cuMemFreeAsync_ptsz [stream] (address: u64, stream: Handle) { free(address, stream) }
    call fn cuMemPoolTrimTo(pool: Handle, keep: usize) {
        let pool = arena::get::<Pool>(pool)?;
        pool.memory().trim(keep as u64);
        lane::post(&PoolTrim { device: pool.device, keep: keep as u64 }, &[])
    }
    ready fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: In<u32>) {
        let pool = arena::get::<Pool>(pool)?;
        if attribute < FIRST_WIDE {
            let index = (attribute as usize).checked_sub(1).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            pool.reuse[index].store(value.get()?.into(), Ordering::Relaxed);
            return Ok(());
        }
        let value = In(value.0.cast::<u64>()).get()?;
        let mut memory = pool.memory();
        match attribute {
            FIRST_WIDE => memory.threshold = value,
            6 if value == 0 => memory.reserved_high = memory.reserved(),
            8 if value == 0 => memory.used_high = memory.used,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }
    ready fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, out: Out<u32>) {
        let pool = arena::get::<Pool>(pool)?;
        if let Some(reuse) = (attribute as usize).checked_sub(1).and_then(|index| pool.reuse.get(index)) {
            return out.put(reuse.load(Ordering::Relaxed) as u32);
        }
        let memory = pool.memory();
        let value = match attribute {
            FIRST_WIDE => memory.threshold,
            5 => memory.reserved(),
            6 => memory.reserved_high,
            7 => memory.used,
            8 => memory.used_high,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        Out(out.0.cast()).put(value)
    }
    ready fn cuMemPoolSetAccess(pool: Handle, access: In<MemAccessDesc>, count: usize) {
        let pool = arena::get::<Pool>(pool)?;
        for wanted in access.slice(count)? {
            let to = u8::try_from(wanted.location.id).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
            device::info(to.into())?;
            if to != pool.device && wanted.flags != 0 && !device::can_reach(to, pool.device)? {
                return Err(CUDA_ERROR_INVALID_DEVICE);
            }
        }
        Ok(())
    }
    ready fn cuMemPoolGetAccess(out: Out<u32>, pool: Handle, location: In<MemLocation>) {
        let pool = arena::get::<Pool>(pool)?;
        out.put(if location_device(location)? == i32::from(pool.device) { 3 } else { 0 })
    }
    ready fn cuMemPoolCreate(out: Out<Handle>, properties: In<MemPoolProps>) {
        out.check()?;
        let properties = properties.get()?;
        if properties.kind != 1 || properties.location.kind != LOCATION_DEVICE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if properties.handle_types & !POSIX_DESCRIPTOR != 0 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        device::info(properties.location.id)?;
        out.put(make(properties.location.id as u8, false, properties.handle_types, false)?)
    }
    ready fn cuMemPoolDestroy(pool: Handle) {
        let object = arena::get::<Pool>(pool)?;
        if object.default {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.iter_mut().filter(|entry| entry.1 == pool).for_each(|entry| entry.1 = entry.0);
        drop(pools);
        arena::remove::<Pool>(pool).map(drop)
    }
    ready fn cuDeviceGetDefaultMemPool(out: Out<Handle>, device: i32) { out.put(pools(device)?.0) }
    ready fn cuDeviceGetMemPool(out: Out<Handle>, device: i32) { out.put(pools(device)?.1) }
    ready fn cuDeviceSetMemPool(device: i32, pool: Handle) { set_pool(device, pool) }
    ready fn cuMemGetDefaultMemPool(out: Out<Handle>, location: In<MemLocation>, _kind: u32) {
        out.put(pools(location_device(location)?)?.0)
    }
    ready fn cuMemGetMemPool(out: Out<Handle>, location: In<MemLocation>, _kind: u32) {
        out.put(pools(location_device(location)?)?.1)
    }
    ready fn cuMemSetMemPool(location: In<MemLocation>, _kind: u32, pool: Handle) { set_pool(location_device(location)?, pool) }
}
