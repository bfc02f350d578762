//! Memory of the memory daemon's, mapped here and known to a GPU.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rekindle_device::{Access, Device};

const PAGE: u64 = 4096;

pub(crate) struct HostMemory {
    base: *mut u8,
    bytes: u64,
    gpu: Arc<dyn Device>,
    registered: bool,
}

// SAFETY: memory that nothing in this process refers to but copies of the GPU's, which its owner has waited for.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// Maps a file whose size does not change, to be read by the GPU or written, too.
    pub(crate) fn map(
        descriptor: &OwnedFd,
        bytes: u64,
        access: Access,
        gpu: Arc<dyn Device>,
    ) -> io::Result<HostMemory> {
        let is_written = access == Access::ReadWrite;
        let protection = if is_written { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let number = descriptor.as_raw_fd();
        // SAFETY: a new mapping, at an address of the kernel's choice, of a file whose size cannot change.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes as usize, protection, libc::MAP_SHARED, number, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let (at, whole) = (base as u64, bytes.next_multiple_of(PAGE));
        let told = gpu.bind().and_then(|()| match is_written {
            true => gpu.host_register(at, whole),
            false => gpu.host_register_read_only(at, whole),
        });
        if let Err(code) = &told {
            log::info!("an array or data is copied by memory that the GPU does not know: {code}");
        }
        Ok(HostMemory { base: base.cast(), bytes, gpu, registered: told.is_ok() })
    }

    pub(crate) fn address(&self) -> u64 {
        self.base as u64
    }

    /// Whether the GPU knows it, and so can use it where it is.
    pub(crate) fn is_registered(&self) -> bool {
        self.registered
    }

    pub(crate) fn has(&self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if self.registered {
            let _ = self.gpu.bind().and_then(|()| self.gpu.host_unregister(self.address()));
        }
        // SAFETY: mapped by `map`; all copies from it and to it have ended.
        unsafe { libc::munmap(self.base.cast(), self.bytes as usize) };
    }
}
