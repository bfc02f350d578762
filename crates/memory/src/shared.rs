//! Memory that others map too.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Written here, read by whoever has the descriptor that [`Shared::reader`] gives. Its size never changes.
pub struct Shared {
    file: File,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is the value's own, and only `write` and `fill` go through it, whose callers keep apart.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn new(bytes: u64) -> io::Result<Shared> {
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
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
        // SAFETY: changes what may be done with our file, and maps all of it at a place of the kernel's choice.
        let base = unsafe {
            if libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0 {
                return Err(io::Error::last_os_error());
            }
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        match base {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            base => Ok(Shared { file, base: base.cast(), bytes: length }),
        }
    }

    /// A descriptor by which it can be mapped and read, and not be written.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        Ok(File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?.into())
    }

    /// Puts bytes there; false if they go beyond its end.
    ///
    /// # Safety
    /// Nobody else writes these bytes or reads them meanwhile.
    pub unsafe fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        // SAFETY: the caller's promise is handed on.
        let filled = unsafe {
            self.fill(offset, bytes.len(), |room| {
                room.copy_from_slice(bytes);
                Ok(())
            })
        };
        filled.is_ok()
    }

    /// Has a range of it filled; an error if that goes beyond its end.
    ///
    /// # Safety
    /// Nobody else writes these bytes or reads them meanwhile.
    pub unsafe fn fill(
        &self,
        offset: u64,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: inside of the mapping, as was seen above, and nobody else's for now.
        fill(unsafe { std::slice::from_raw_parts_mut(self.base.add(offset), bytes) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has a reference into it any more.
        unsafe { libc::munmap(self.base.cast::<c_void>(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn readers_see_what_is_written_and_can_change_nothing() {
        let shared = Shared::new(10_000).unwrap();
        let reader = File::from(shared.reader().unwrap());
        // SAFETY: nobody else has it mapped.
        assert!(unsafe { shared.write(9_990, b"0123456789") });
        // SAFETY: as above.
        assert!(!unsafe { shared.write(9_991, b"0123456789") } && !unsafe { shared.write(u64::MAX, b"0") });
        let mut seen = [0; 10];
        reader.read_exact_at(&mut seen, 9_990).unwrap();
        assert_eq!(&seen, b"0123456789");
        assert!(reader.write_at(b"x", 0).is_err() && reader.set_len(0).is_err());
    }
}
