//! One memory of a cache, held by a descriptor for as long as the daemon lives or until it is dropped.
//!
//! Memory of the host is a memfd. Workers get a descriptor that can only be read through. Its pages are never given back
//! while workers may know them: a slot is filled anew in place, so that a GPU that has pinned them reads what is there.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rekindle_protocol::worker::{CACHE_SLOT, CacheMemory};

use super::index::Slot;

pub struct Memory {
    pub described: CacheMemory,
    /// What workers get.
    descriptor: OwnedFd,
    /// Of the host: where the daemon has it.
    base: Option<Mapping>,
}

struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is written to by `Memory::slot` alone, whose callers keep to one for each slot.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `Memory::of_host`, and nobody has a slice of it: slices borrow the memory.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

impl Memory {
    pub fn of_host(number: u32, bytes: u64) -> io::Result<Memory> {
        // SAFETY: the name ends with a zero byte.
        let descriptor = unsafe { libc::memfd_create(c"rekindle-cache".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(bytes)?;
        let length = bytes as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of an open file, and advice about it: huge pages are filled and registered faster.
        let base = unsafe {
            let base =
                libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(base, length, libc::MADV_HUGEPAGE);
            base
        };
        let base = Some(Mapping { base: base.cast(), bytes: length });
        let descriptor = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into();
        Ok(Memory { described: CacheMemory { number, bytes, device: None }, descriptor, base })
    }

    /// Of a GPU, as a worker has made it.
    pub fn of_gpu(described: CacheMemory, descriptor: OwnedFd) -> Memory {
        Memory { described, descriptor, base: None }
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// The first bytes of a slot of host memory, to be filled.
    ///
    /// # Safety
    /// The caller alone uses the slot: it was claimed, and is neither filled nor dropped yet.
    #[expect(clippy::mut_from_ref, reason = "each slot has one who fills it, as the caller promises")]
    pub unsafe fn slot(&self, slot: Slot, bytes: u64) -> Option<&mut [u8]> {
        let (mapping, at) = (self.base.as_ref()?, u64::from(slot.number) * CACHE_SLOT);
        if bytes > CACHE_SLOT || at + bytes > mapping.bytes as u64 {
            return None;
        }
        // SAFETY: within the mapping, and nobody else's by the caller's promise.
        Some(unsafe { std::slice::from_raw_parts_mut(mapping.base.add(at as usize), bytes as usize) })
    }
}
