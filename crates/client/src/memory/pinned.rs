//! Pinned host memory: files of the run directory, mapped at one address in program and worker.
//!
//! Large blocks are files of their own. Small ones share a file: blocks of one size, a power of two, are cut from a
//! slab, which is kept for the next ones.

use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::{
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM,
    CUDA_ERROR_OUT_OF_MEMORY,
};
use rekindle_device::{DEVICE_RANGE, PINNED_RANGE, Slice};
use rekindle_protocol::operation::{PinnedRegister, PinnedUnregister};

use crate::abi::{Out, Result};
use crate::export::exports;
use crate::report::report;
use crate::{context, context_state, lane, session};

use super::map::{self, Allocation, Purpose};
use super::register;

const BLOCK: u64 = 2 << 20;
const SLAB: u64 = 2 << 20;
const LARGEST_SHARED: u64 = 256 << 10;
const SMALLEST: u64 = 512;
const PAGE: u64 = 4096;
/// Where in the range of addresses the first ones are given. Where a kernel's arguments lie, two numbers of four bytes can look like
/// an address; at the beginning of a range that would be a small one and a round one, such as 512 and 20480, as torch has them. A
/// worker takes such a kernel for one that uses pinned memory.
const FIRST: u64 = 0x2b_9c40_0000;

#[derive(Default)]
struct Pinned {
    /// Address ranges in use, by their start.
    used: BTreeMap<u64, u64>,
    /// Where the last search ended.
    next: u64,
    /// Files by address: name, bytes, device.
    files: HashMap<u64, (String, u64, u8)>,
    /// Free blocks of slabs, by size.
    free: HashMap<u64, Vec<u64>>,
}

static PINNED: Mutex<Option<Pinned>> = Mutex::new(None);

fn pinned() -> MutexGuard<'static, Option<Pinned>> {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether these host bytes are shared with the worker, so that it can copy from and to them itself.
pub fn is_shared(address: u64, bytes: u64) -> bool {
    DEVICE_RANGE.contains(&address) || is_pinned(address, bytes)
}

/// Whether these bytes are host memory that the worker sees.
pub fn is_pinned(address: u64, bytes: u64) -> bool {
    PINNED_RANGE.contains(&address) || register::is_shared(address, bytes)
}

impl Pinned {
    /// A free range of addresses, one after the other around the whole `range`.
    fn reserve(&mut self, bytes: u64, range: &Range<u64>) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(BLOCK)?;
        let mut at = if self.next == 0 { range.start + FIRST } else { self.next.max(range.start) };
        for _ in 0..2 {
            while at.checked_add(bytes)? <= range.end {
                match self.used.range(..at + bytes).next_back() {
                    Some((start, length)) if start + length > at => at = start + length,
                    _ => {
                        self.used.insert(at, bytes);
                        self.next = at + bytes;
                        return Some(at);
                    }
                }
            }
            at = range.start;
        }
        None
    }
}

/// Makes a file of the run directory and maps it at exactly `address`, over what is mapped there if `replace`. Known to
/// the worker as pinned memory afterwards.
pub fn map_file(device: u8, address: u64, bytes: u64, replace: bool, contents: Option<&[u8]>) -> Result<()> {
    let session = session::get()?;
    let name = session.new_file_name("pinned");
    let path = session.directory.join(&name);
    let _ = std::fs::remove_file(&path);
    let failed = |error: std::io::Error| {
        report(format_args!("cannot make {bytes} bytes of pinned memory in {}: {error}", path.display()));
        let _ = std::fs::remove_file(&path);
        CUDA_ERROR_OUT_OF_MEMORY
    };
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    // Allocated now, so that a full file system is an error here and not a SIGBUS later.
    // SAFETY: the descriptor is open.
    let full = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as i64) };
    if full != 0 {
        return Err(failed(std::io::Error::from_raw_os_error(full)));
    }
    if let Some(contents) = contents {
        std::os::unix::fs::FileExt::write_all_at(&file, contents, 0).map_err(failed)?;
    }
    let flags = libc::MAP_SHARED | if replace { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
    // SAFETY: the range is reserved by `Pinned::reserve`, or the caller's own memory, whose contents the file has.
    let mapped = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            file.as_raw_fd(),
            0,
        )
    };
    if mapped as u64 != address {
        let error = std::io::Error::last_os_error();
        if mapped != libc::MAP_FAILED {
            // SAFETY: a mapping that was just made, at an address that was not asked for.
            unsafe { libc::munmap(mapped, bytes as usize) };
        }
        return Err(failed(error));
    }
    session.files().insert(name.clone(), bytes);
    if let Err(code) = lane::ask(&PinnedRegister { device, name: &name, address, bytes }) {
        session.files().remove(&name);
        let _ = std::fs::remove_file(&path);
        if !replace {
            // SAFETY: the mapping that was made above, which nobody knows.
            unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
        }
        return Err(code);
    }
    pinned().get_or_insert_default().files.insert(address, (name, bytes, device));
    Ok(())
}

/// Takes back what [`map_file`] did, but for the mapping in this process.
pub fn unmap_file(address: u64) -> Result<u64> {
    let known = pinned().get_or_insert_default().files.remove(&address);
    let (name, bytes, device) = known.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    session::get()?.files().remove(&name);
    lane::ask(&PinnedUnregister { device, address })?;
    Ok(bytes)
}

fn new_range(device: u8, bytes: u64) -> Result<u64> {
    let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    let range = session::get()?.welcome.slice.map_or(PINNED_RANGE, Slice::pinned);
    let address = pinned().get_or_insert_default().reserve(bytes, &range).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    map_file(device, address, bytes, false, None).inspect_err(|_| {
        pinned().get_or_insert_default().used.remove(&address);
    })?;
    Ok(address)
}

/// The slab block that holds this many bytes; `None` for what gets a file of its own.
fn class(bytes: u64) -> Option<u64> {
    (bytes <= LARGEST_SHARED).then(|| bytes.next_power_of_two().max(SMALLEST))
}

/// Pinned memory for the current context's device.
pub fn allocate(bytes: u64, purpose: Purpose) -> Result<u64> {
    let device = context::device()?;
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let address = match class(bytes) {
        None => new_range(device, bytes)?,
        Some(size) => {
            let free = pinned().get_or_insert_default().free.entry(size).or_default().pop();
            match free {
                Some(address) => address,
                None => {
                    let slab = new_range(device, SLAB)?;
                    let mut pinned = pinned();
                    let blocks = pinned.get_or_insert_default().free.entry(size).or_default();
                    blocks.extend((1..SLAB / size).rev().map(|n| slab + n * size));
                    slab
                }
            }
        }
    };
    map::note(address, bytes, purpose)?;
    Ok(address)
}

/// Gives pinned memory back, when nothing on the device uses it any more.
pub fn release(allocation: Allocation) -> Result<()> {
    let Allocation { address, bytes, device, .. } = allocation;
    if let Some(size) = class(bytes) {
        let waited = context_state::synchronize(device);
        pinned().get_or_insert_default().free.entry(size).or_default().push(address);
        return waited;
    }
    let bytes = unmap_file(address)?;
    // SAFETY: the mapping is ours, and the program has given it up.
    let unmapped = unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
    pinned().get_or_insert_default().used.remove(&address);
    if unmapped == 0 { Ok(()) } else { Err(CUDA_ERROR_OPERATING_SYSTEM) }
}

/// `CU_MEMHOSTALLOC_DEVICEMAP`, which unified addressing implies.
const DEVICE_MAP: u32 = 2;

exports! {
    call fn cuMemHostAlloc(out: Out<u64>, bytes: usize, flags: u32) {
        out.check()?;
        if flags & !7 != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        out.put(allocate(bytes as u64, Purpose::Pinned { flags: flags | DEVICE_MAP })?)
    }
    call fn cuMemAllocHost_v2(out: Out<u64>, bytes: usize) {
        out.check()?;
        out.put(allocate(bytes as u64, Purpose::Pinned { flags: DEVICE_MAP })?)
    }
    call fn cuMemFreeHost(address: u64) {
        if address == 0 {
            return Ok(());
        }
        release(map::take(address, |a| matches!(a.purpose, Purpose::Pinned { .. }))?)
    }
    call fn cuMemHostGetDevicePointer_v2(out: Out<u64>, address: u64, flags: u32) {
        out.check()?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let allocation = map::find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        match allocation.purpose {
            Purpose::Registered { shared: false, .. } => register::share(allocation)?,
            Purpose::Registered { .. } | Purpose::Pinned { .. } | Purpose::Managed => {}
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        out.put(address)
    }
    ready fn cuMemHostGetFlags(out: Out<u32>, address: u64) {
        match map::find(address).map(|a| a.purpose) {
            Some(Purpose::Pinned { flags } | Purpose::Registered { flags, .. }) => out.put(flags),
            Some(_) => Err(CUDA_ERROR_INVALID_VALUE),
            None => Err(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_are_found_again() {
        let mut pinned = Pinned::default();
        let first = pinned.reserve(1, &PINNED_RANGE).unwrap();
        let second = pinned.reserve(5 << 20, &PINNED_RANGE).unwrap();
        let third = pinned.reserve(2 << 20, &PINNED_RANGE).unwrap();
        assert!(
            first as i32 <= -(1 << 30) && (first >> 32) % 2 == 1,
            "{first:#x} is no two numbers that programs have"
        );
        assert_eq!(second, first + (2 << 20));
        assert_eq!(third, second + (6 << 20));
        pinned.used.remove(&second);
        pinned.next = 0;
        assert_eq!(pinned.reserve(8 << 20, &PINNED_RANGE), Some(third + (2 << 20)));
        pinned.next = 0;
        assert_eq!(pinned.reserve(6 << 20, &PINNED_RANGE), Some(second));
        assert_eq!(pinned.reserve(u64::MAX, &PINNED_RANGE), None);
    }

    #[test]
    fn small_blocks_have_classes() {
        assert_eq!((class(1), class(513), class(256 << 10)), (Some(512), Some(1024), Some(256 << 10)));
        assert_eq!(class((256 << 10) + 1), None);
    }
}
