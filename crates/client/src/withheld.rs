//! A connection that no forked child has: it would be one to the daemon for as long as the child lives, and no image could be taken.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

/// Its descriptor; -1 while there is none.
static WITHHELD: AtomicI32 = AtomicI32::new(-1);

/// One at a time: the caller sees to it.
pub struct WithheldStream(UnixStream);

impl WithheldStream {
    /// It is withheld before it leads anywhere.
    pub fn connect(path: &Path) -> io::Result<WithheldStream> {
        // SAFETY: zero is a value of it.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let name = path.as_os_str().as_bytes();
        if name.len() >= address.sun_path.len() {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        name.iter().zip(&mut address.sun_path).for_each(|(byte, into)| *into = *byte as libc::c_char);
        // SAFETY: takes no memory of ours.
        let made = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is new, and nobody else's.
        let stream = WithheldStream(unsafe { OwnedFd::from_raw_fd(made) }.into());
        WITHHELD.store(made, Ordering::SeqCst);
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: the address is whole, and ends with a zero.
        match unsafe { libc::connect(stream.0.as_raw_fd(), (&raw const address).cast(), length) } {
            0 => Ok(stream),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn stream(&self) -> &UnixStream {
        &self.0
    }
}

impl Drop for WithheldStream {
    /// Before its number is another one's.
    fn drop(&mut self) {
        WITHHELD.store(-1, Ordering::SeqCst);
    }
}

/// In a forked child: closes what another thread of the parent had.
pub fn close_in_child() {
    let descriptor = WITHHELD.swap(-1, Ordering::SeqCst);
    if descriptor >= 0 {
        // SAFETY: it is of a thread that there is not here.
        unsafe { libc::close(descriptor) };
    }
}
