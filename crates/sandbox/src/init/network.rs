//! A network of a sandbox's own, for a program that is restored beside the one that has its ports.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::sched::{CloneFlags, unshare};

/// Of what a program may be bound to, nothing is there but the loopback.
const ANY_ADDRESS: [&str; 2] = ["/proc/sys/net/ipv4/ip_nonlocal_bind", "/proc/sys/net/ipv6/ip_nonlocal_bind"];

/// Has this process and all that it starts in a new network, whose sockets may have any address.
pub fn make() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    raise_loopback()?;
    for setting in ANY_ADDRESS {
        match fs::write(setting, "1") {
            // The kernel does not have that protocol.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

fn raise_loopback() -> io::Result<()> {
    // SAFETY: a new descriptor, which nobody else has.
    let socket = unsafe {
        let made = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(made)
    };
    // SAFETY: all zero is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: a whole request, with the name of an interface that ends with a zero byte.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
