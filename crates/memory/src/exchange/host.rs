//! Memory of the host that a worker writes and reads.

use std::io;
use std::os::fd::OwnedFd;

use nix::fcntl::posix_fallocate;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// So much memory, which is there: what writes to it cannot find that there is none left.
pub(super) fn memory(bytes: u64) -> io::Result<OwnedFd> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let memory = memfd_create(c"rekindle-exchange", MFdFlags::MFD_CLOEXEC)?;
    posix_fallocate(&memory, 0, length)?;
    Ok(memory)
}
