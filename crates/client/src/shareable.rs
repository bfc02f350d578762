//! Memory and pools that processes of one program give each other as file descriptors.
//!
//! A descriptor is a sealed memory file with the bytes of a [handle](rekindle_protocol::ipc). The kernel passes it on as any
//! other, by sockets or over `exec`, and CRIU keeps it; whoever imports it reads the handle, and has its worker ask the
//! exporter's for the memory.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CuResult};
use rekindle_protocol::ipc::{HANDLE_BYTES, Handle as Shared, Kind};

use crate::abi::{Out, Result};
use crate::refusal::{refused, rejected};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const POSIX_DESCRIPTOR: u32 = 1;

const SEALS: i32 = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

/// What is neither a descriptor nor anything else that is known here.
pub fn check_kind(function: &'static str, kind: u32) -> Result<()> {
    match kind {
        POSIX_DESCRIPTOR => Ok(()),
        _ => Err(refused(function, "memory is handed on as POSIX file descriptors alone")),
    }
}

/// Gives the program a descriptor with a handle.
pub fn put(out: Out<i32>, handle: &[u8]) -> Result<()> {
    out.check()?;
    // SAFETY: the name is a C string.
    let made = unsafe {
        libc::memfd_create(c"rekindle-shared".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    };
    if made < 0 {
        return Err(CUDA_ERROR_OPERATING_SYSTEM);
    }
    // SAFETY: the kernel has just given this descriptor, and nobody else has it.
    let made = unsafe { OwnedFd::from_raw_fd(made) };
    // SAFETY: the bytes are valid for the length given.
    let written = unsafe { libc::pwrite(made.as_raw_fd(), handle.as_ptr().cast(), handle.len(), 0) };
    // SAFETY: it takes numbers only.
    let sealed = unsafe { libc::fcntl(made.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
    if written != handle.len() as isize || sealed < 0 {
        return Err(CUDA_ERROR_OPERATING_SYSTEM);
    }
    out.put(made.into_raw_fd())
}

/// The bytes of the handle in a descriptor; the driver's interface passes that as a pointer.
pub fn read(function: &'static str, descriptor: *const c_void, kind: Kind) -> Result<[u8; HANDLE_BYTES]> {
    let descriptor = i32::try_from(descriptor as usize).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let mut handle = [0; HANDLE_BYTES];
    // SAFETY: it takes numbers only; the seals tell a memory file that nobody has written to since.
    let is_sealed = unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) } == SEALS;
    // SAFETY: the array has room for the length given.
    let read = unsafe { libc::pread(descriptor, handle.as_mut_ptr().cast(), HANDLE_BYTES, 0) };
    if !is_sealed || read != HANDLE_BYTES as isize || Shared::decode(&handle, kind).is_none() {
        return Err(not_ours(function, CUDA_ERROR_INVALID_VALUE));
    }
    Ok(handle)
}

/// Says once why a descriptor is not taken.
pub fn not_ours(function: &'static str, code: CuResult) -> CuResult {
    rejected(
        function,
        code,
        "the descriptor is none that a process of this sandbox has exported and still has; memory of other sandboxes and of \
         other interfaces cannot be imported",
    )
}
