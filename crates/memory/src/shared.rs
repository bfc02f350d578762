//! Memory that others map.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Written here, read by whoever has the descriptor that [`Shared::reader`] gives. Its size never changes.
///
/// It is not mapped here: a page that is written whole by a system call is neither cleared first nor faulted in.
pub struct Shared {
    file: File,
}

impl Shared {
    pub fn new(bytes: u64) -> io::Result<Shared> {
        // SAFETY: makes a descriptor, which is ours alone.
        let file = unsafe {
            let number =
                libc::memfd_create(c"rekindle-data".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from(OwnedFd::from_raw_fd(number))
        };
        file.set_len(bytes)?;
        let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: changes what may be done with our file.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok(Shared { file }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A descriptor by which it can be mapped and read, and not be written.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        Ok(File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?.into())
    }

    /// Puts bytes there; an error if they go beyond its end.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_what_is_written_and_can_change_nothing() {
        let shared = Shared::new(10_000).unwrap();
        let reader = File::from(shared.reader().unwrap());
        shared.write(9_990, b"0123456789").unwrap();
        assert!(shared.write(9_991, b"0123456789").is_err() && shared.write(u64::MAX, b"0").is_err());
        let mut seen = [0; 10];
        reader.read_exact_at(&mut seen, 9_990).unwrap();
        assert_eq!(&seen, b"0123456789");
        assert!(reader.write_at(b"x", 0).is_err() && reader.set_len(0).is_err());
    }
}
