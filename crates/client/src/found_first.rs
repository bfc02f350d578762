//! Being found before the real driver in this process's own map.
//!
//! A profiler's library (CUPTI) looks for the driver in `/proc/self/maps`, and takes the first library of that name. Where it is
//! the real one, the profiler attaches itself to it and sees nothing all the same, since kernels run in the worker; and a
//! driver to which a profiler is attached cannot be detached, so that the program could not be checkpointed. Measured on
//! driver 580 with CUPTI 13.0.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{ffi, io, ptr};

/// Below all that the kernel and linkers choose, and above what may never be mapped (`vm.mmap_min_addr`).
const PLACE: usize = 1 << 20;
const BYTES: usize = 4096;

/// Maps the first page of this library at a low address, to be read alone.
pub fn map() -> io::Result<()> {
    // SAFETY: all of it may be zero.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is one of our own code, and the place is valid for what is written to it.
    let is_known = unsafe { libc::dladdr(map as *const c_void, &mut found) } != 0;
    if !is_known || found.dli_fname.is_null() {
        return Err(io::Error::other("the loader does not know this library"));
    }
    // SAFETY: a string of the loader's, which stays as long as the library does.
    let name = unsafe { ffi::CStr::from_ptr(found.dli_fname) };
    let file = File::open(Path::new(ffi::OsStr::from_bytes(name.to_bytes())))?;
    // SAFETY: nothing that is there is replaced, and nobody writes to the page.
    let mapped = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(PLACE),
            BYTES,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE,
            file.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_library_in_the_map_is_this_one() {
        map().unwrap();
        let first = std::fs::read_to_string("/proc/self/maps").unwrap().lines().next().unwrap().to_string();
        assert!(first.starts_with(&format!("{PLACE:08x}-")), "{first}");
        assert!(first.ends_with(std::env::current_exe().unwrap().to_str().unwrap()), "{first}");
        assert!(map().is_err());
    }
}
