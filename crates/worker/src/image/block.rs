//! A block of host memory that devices copy to and from at full speed.

use std::sync::Arc;

use rekindle_cuda::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
use rekindle_device::{Device, Result, Stream};

/// Pinned memory and a stream of its own on one device, for one thread.
pub(super) struct Block {
    device: Arc<dyn Device>,
    stream: Stream,
    base: *mut u8,
    bytes: usize,
}

/// `CU_STREAM_NON_BLOCKING`: work of the legacy stream is not waited for.
const NON_BLOCKING: u32 = 1;

impl Block {
    /// Makes the device's context current on this thread.
    pub(super) fn new(device: Arc<dyn Device>, bytes: usize) -> Result<Block> {
        device.bind()?;
        let bytes = bytes.next_multiple_of(4096).max(4096);
        // SAFETY: a new private mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let unmapped = |code| {
            // SAFETY: mapped above, and known to nobody.
            unsafe { libc::munmap(base, bytes) };
            code
        };
        match device.host_register(base as u64, bytes as u64) {
            Ok(()) | Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) => {}
            Err(code) => return Err(unmapped(code)),
        }
        match device.stream_create(NON_BLOCKING, 0) {
            Ok(stream) => Ok(Block { device, stream, base: base.cast(), bytes }),
            Err(code) => {
                let _ = device.host_unregister(base as u64);
                Err(unmapped(code))
            }
        }
    }

    /// The bytes. No copy is under way: each is waited for.
    pub(super) fn bytes(&mut self, count: usize) -> &mut [u8] {
        // SAFETY: the mapping is `bytes` long and lives as long as `self`, which is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.base, count.min(self.bytes)) }
    }

    /// Copies from the device to the start of the block.
    pub(super) fn fetch(&mut self, address: u64, count: usize) -> Result<&[u8]> {
        let count = count.min(self.bytes);
        self.device.copy(self.base as u64, address, count as u64, self.stream)?;
        self.device.stream_synchronize(self.stream)?;
        Ok(self.bytes(count))
    }

    /// Copies the start of the block to the device.
    pub(super) fn put(&mut self, address: u64, count: usize) -> Result<()> {
        self.device.copy(address, self.base as u64, count.min(self.bytes) as u64, self.stream)?;
        self.device.stream_synchronize(self.stream)
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let _ = self.device.stream_destroy(self.stream);
        let _ = self.device.host_unregister(self.base as u64);
        // SAFETY: mapped by `new`; the device has let go of it and no copy is under way.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
