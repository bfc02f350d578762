//! Host memory that the program maps itself: handles whose place is the host. Where one is mapped it is [pinned memory](pinned), a
//! file of the run directory, at the address that the program has chosen. It is mapped once at a time; between two mappings the
//! client keeps its contents.

use rekindle_cuda::CUDA_ERROR_OPERATING_SYSTEM;

use crate::abi::Result;

use super::pinned;

/// Maps it with these contents, or zeros.
pub fn map(device: u8, address: u64, bytes: u64, contents: Option<&[u8]>) -> Result<()> {
    pinned::map_file(device, address, bytes, false, contents)
}

/// Unmaps it when nothing on the device uses it any more. Its contents, if they are `kept`.
pub fn unmap(address: u64, bytes: u64, kept: bool) -> Result<Option<Vec<u8>>> {
    // SAFETY: `map` has mapped so many bytes there, and only the caller unmaps them.
    let contents =
        kept.then(|| unsafe { std::slice::from_raw_parts(address as *const u8, bytes as usize) }.to_vec());
    pinned::unmap_file(address)?;
    // SAFETY: the mapping is ours, and the program has given it up.
    let unmapped = unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
    if unmapped == 0 { Ok(contents) } else { Err(CUDA_ERROR_OPERATING_SYSTEM) }
}
