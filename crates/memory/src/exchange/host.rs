//! Memory of the host that a worker writes and reads.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// So much memory, which is there: what writes to it cannot find that there is none left.
pub(super) fn memory(bytes: u64) -> io::Result<OwnedFd> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // SAFETY: makes a descriptor, which is ours alone.
    let file = unsafe {
        let number = libc::memfd_create(c"rekindle-exchange".as_ptr(), libc::MFD_CLOEXEC);
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from(OwnedFd::from_raw_fd(number))
    };
    // SAFETY: changes the size of our file.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
        0 => Ok(file.into()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
