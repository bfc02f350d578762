//! One memory of a cache, held by a descriptor for as long as the daemon lives or until it is dropped.
//!
//! Memory of the host is a file without a name. Workers get a descriptor that can only be read through. Its pages are never given back
//! while workers may know them: a slot is filled anew in place, so that a GPU that has pinned them reads what is there.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use rekindle_protocol::memory_file;
use rekindle_protocol::worker::{CACHE_SLOT, CacheMemory};

use super::index::Slot;

pub struct Memory {
    pub described: CacheMemory,
    /// What workers get.
    descriptor: OwnedFd,
    /// Of the host: where the daemon has it.
    mapping: Option<MmapRaw>,
}

impl Memory {
    pub fn of_host(number: u32, bytes: u64) -> io::Result<Memory> {
        let file = memory_file::new(bytes)?;
        let mapping = MmapOptions::new().len(bytes as usize).map_raw(&file)?;
        let descriptor = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into();
        Ok(Memory {
            described: CacheMemory { number, bytes, device: None },
            descriptor,
            mapping: Some(mapping),
        })
    }

    /// Of a GPU, as a worker has made it.
    pub fn of_gpu(described: CacheMemory, descriptor: OwnedFd) -> Memory {
        Memory { described, descriptor, mapping: None }
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
        let (mapping, at) = (self.mapping.as_ref()?, u64::from(slot.number) * CACHE_SLOT);
        if bytes > CACHE_SLOT || at + bytes > mapping.len() as u64 {
            return None;
        }
        // SAFETY: within the mapping, and nobody else's by the caller's promise.
        Some(unsafe { std::slice::from_raw_parts_mut(mapping.as_mut_ptr().add(at as usize), bytes as usize) })
    }
}
