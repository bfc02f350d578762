//! Host memory of the program's own that it registers. Copies go through staging as for any memory; when the program
//! wants a device pointer, the pages become a shared file's, at the same address.

use std::sync::atomic::{AtomicUsize, Ordering};

use rekindle_cuda::{
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY,
};

use crate::abi::Result;
use crate::context;
use crate::export::exports;

use super::map::{self, Allocation, Purpose};
use super::pinned;

const PAGE: u64 = 4096;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`.
const DEVICE_MAP: u32 = 2;
/// `CU_MEMHOSTREGISTER_IOMEMORY`.
const IO_MEMORY: u32 = 4;

/// Registered ranges that are shared files now; a look into the map is spared while there are none.
static SHARED: AtomicUsize = AtomicUsize::new(0);

/// Whether these bytes are registered memory that the worker sees.
pub fn is_shared(address: u64, bytes: u64) -> bool {
    SHARED.load(Ordering::Relaxed) != 0
        && map::find(address).is_some_and(|a| {
            matches!(a.purpose, Purpose::Registered { shared: true, .. })
                && address + bytes <= a.address + a.bytes
        })
}

/// Whole pages around a range.
fn pages(allocation: Allocation) -> (u64, u64) {
    let start = allocation.address & !(PAGE - 1);
    let end = (allocation.address + allocation.bytes).next_multiple_of(PAGE);
    (start, end - start)
}

/// Puts a shared file with the same contents under the range's pages.
pub fn share(allocation: Allocation) -> Result<()> {
    let (start, bytes) = pages(allocation);
    // SAFETY: the program registered this memory, so its pages are mapped and readable.
    let contents = unsafe { std::slice::from_raw_parts(start as *const u8, bytes as usize) };
    pinned::map_file(allocation.device, start, bytes, true, Some(contents))?;
    map::update(allocation.address, |a| {
        if let Purpose::Registered { shared, .. } = &mut a.purpose {
            *shared = true;
        }
    });
    SHARED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Puts private pages with the same contents back: a mapping of a removed file could not be checkpointed.
fn make_private(start: u64, bytes: u64) -> Result<()> {
    let bytes = bytes as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping gets a copy of mapped pages and then takes their place.
    let moved = unsafe {
        let fresh = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if fresh == libc::MAP_FAILED {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        std::ptr::copy_nonoverlapping(start as *const u8, fresh.cast(), bytes);
        libc::mremap(
            fresh,
            bytes,
            bytes,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            start as *mut libc::c_void,
        )
    };
    if moved == libc::MAP_FAILED { Err(CUDA_ERROR_OPERATING_SYSTEM) } else { Ok(()) }
}

exports! {
    call fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) {
        context::current()?;
        if address == 0 || bytes == 0 || flags & !15 != 0 || flags & IO_MEMORY != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if map::find(address).is_some() || !map::within(address, bytes as u64).is_empty() {
            return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        map::note(address, bytes as u64, Purpose::Registered { flags, shared: false })?;
        if flags & DEVICE_MAP != 0
            && let Some(allocation) = map::at(address)
            && let Err(code) = share(allocation)
        {
            map::take(address, |_| true)?;
            return Err(code);
        }
        Ok(())
    }
    call fn cuMemHostUnregister(address: u64) {
        let registered = map::take(address, |a| matches!(a.purpose, Purpose::Registered { .. }))
            .map_err(|_| CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
        if matches!(registered.purpose, Purpose::Registered { shared: true, .. }) {
            SHARED.fetch_sub(1, Ordering::Relaxed);
            let (start, bytes) = pages(registered);
            pinned::unmap_file(start)?;
            make_private(start, bytes)?;
        }
        Ok(())
    }
}
