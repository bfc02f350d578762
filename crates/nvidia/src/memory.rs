//! A GPU's addresses and memory, which other processes can have by descriptors; and host memory that it sees.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rekindle_cuda::{
    CUDA_ERROR_ALREADY_MAPPED, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN,
};
use rekindle_device::{Access, Memory, Result};

use crate::device::{NvidiaDevice, ask};
use crate::driver::call;
use crate::{imported, sys};

const PORTABLE_AND_MAPPED: u32 = 3;
/// `CU_MEMHOSTREGISTER_READ_ONLY`.
const READ_ONLY: u32 = 8;

/// What the GPU may do with host memory.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Registered {
    Writable = PORTABLE_AND_MAPPED,
    ReadOnly = PORTABLE_AND_MAPPED | READ_ONLY,
}

/// Memory of this GPU that can be exported as a descriptor.
pub fn properties(ordinal: i32) -> sys::AllocationProperties {
    sys::AllocationProperties {
        kind: sys::ALLOCATION_PINNED,
        handle_types: sys::HANDLE_POSIX_FD,
        location: sys::Location { kind: sys::LOCATION_DEVICE, id: ordinal },
        win32: 0,
        compression: 0,
        gpu_direct_rdma: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

impl NvidiaDevice {
    /// Takes these addresses and no others.
    pub fn reserve_at(&self, address: u64, bytes: u64) -> Result<()> {
        let mut given = 0;
        ask!(self, cuMemAddressReserve(&mut given, bytes as usize, 0, address, 0))?;
        if given == address {
            return Ok(());
        }
        log::warn!(
            "{bytes} bytes of GPU addresses were asked for at {address:#x}, but {given:#x} was offered"
        );
        ask!(self, cuMemAddressFree(given, bytes as usize))?;
        Err(CUDA_ERROR_ALREADY_MAPPED)
    }

    pub fn create_memory(&self, bytes: u64) -> Result<Memory> {
        let mut handle = 0;
        ask!(self, cuMemCreate(&mut handle, bytes as usize, &properties(self.ordinal), 0))?;
        Ok(Memory(handle))
    }

    /// Memory of another GPU of the machine.
    pub fn create_memory_on(&self, gpu: &[u8; 16], bytes: u64) -> Result<Memory> {
        let (mut count, mut handle) = (0, 0);
        ask!(self, cuDeviceGetCount(&mut count))?;
        for index in 0..count {
            let (mut ordinal, mut uuid) = (0, [0; 16]);
            ask!(self, cuDeviceGet(&mut ordinal, index))?;
            ask!(self, cuDeviceGetUuid_v2(&mut uuid, ordinal))?;
            if uuid == *gpu {
                ask!(self, cuMemCreate(&mut handle, bytes as usize, &properties(ordinal), 0))?;
                return Ok(Memory(handle));
            }
        }
        Err(CUDA_ERROR_INVALID_DEVICE)
    }

    pub fn export_memory(&self, memory: Memory) -> Result<OwnedFd> {
        if let Some(descriptor) = self.imported.export(memory)? {
            return Ok(descriptor);
        }
        let mut descriptor = -1;
        ask!(self, cuMemExportToShareableHandle(&mut descriptor, memory.0, sys::HANDLE_POSIX_FD, 0))?;
        if descriptor < 0 {
            return Err(CUDA_ERROR_UNKNOWN);
        }
        // SAFETY: the driver made this descriptor for its caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: sets a flag of a descriptor that is owned here.
        unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(descriptor)
    }

    pub fn import_memory(&self, descriptor: BorrowedFd<'_>) -> Result<Memory> {
        let mut handle = 0;
        let number = descriptor.as_raw_fd() as usize;
        let kept = imported::copy(descriptor)?;
        ask!(self, cuMemImportFromShareableHandle(&mut handle, number, sys::HANDLE_POSIX_FD))?;
        self.imported.keep(Memory(handle), kept);
        Ok(Memory(handle))
    }

    pub fn release_memory(&self, memory: Memory) -> Result<()> {
        ask!(self, cuMemRelease(memory.0))?;
        self.imported.release(memory);
        Ok(())
    }

    pub fn set_access(&self, address: u64, bytes: u64, access: Access) -> Result<()> {
        let flags = match access {
            Access::None => 0,
            Access::Read => 1,
            Access::ReadWrite => 3,
        };
        let describe = |id: &i32| sys::AccessDescription {
            location: sys::Location { kind: sys::LOCATION_DEVICE, id: *id },
            flags,
        };
        let who: Vec<_> = std::iter::once(&self.ordinal).chain(&self.reached_by).map(describe).collect();
        ask!(self, cuMemSetAccess(address, bytes as usize, who.as_ptr(), who.len()))
    }

    /// Registers host memory, which the GPU is to see at its own address.
    pub fn register(&self, address: u64, bytes: u64, how: Registered) -> Result<()> {
        let mut seen = 0;
        ask!(self, cuMemHostRegister_v2(address, bytes as usize, how as u32))?;
        let found = ask!(self, cuMemHostGetDevicePointer_v2(&mut seen, address, 0));
        if found.is_ok() && seen == address {
            return Ok(());
        }
        log::warn!("host memory at {address:#x} would be at {seen:#x} on the GPU");
        ask!(self, cuMemHostUnregister(address))?;
        Err(found.err().unwrap_or(CUDA_ERROR_NOT_SUPPORTED))
    }
}
