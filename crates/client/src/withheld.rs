//! A connection that no forked child keeps: it would be one to the daemon for as long as the child lives, and no image could be taken.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The inode of the last one, which no other socket has before some thousand million were made.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Connects to a socket, one at a time: the caller sees to it. The connection is withheld before it leads anywhere.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
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
    let socket = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(made) });
    LAST.store(socket.metadata()?.ino(), Ordering::SeqCst);
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is whole, and ends with a zero.
    match unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(OwnedFd::from(socket).into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a socket of this inode is it.
pub fn is_withheld(inode: u64) -> bool {
    LAST.load(Ordering::SeqCst) == inode
}
