//! A network of a sandbox's own: a namespace that has its loopback and nothing else.
//!
//! Its ports are nobody else's, and nobody comes to them from outside but who [enters](Network::enter) it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::sched::{CloneFlags, setns, unshare};

/// What else than the loopback's a socket may be bound to is not there.
const ANY_ADDRESS: [&str; 2] = ["/proc/sys/net/ipv4/ip_nonlocal_bind", "/proc/sys/net/ipv6/ip_nonlocal_bind"];

/// The addresses that sockets in a new network may be bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    Loopback,
    /// All, for a program that comes from a network that had others.
    Any,
}

/// It is there for as long as this, or a process or a socket in it.
#[derive(Debug)]
pub struct Network(OwnedFd);

impl Network {
    pub fn make(addresses: Addresses) -> io::Result<Self> {
        // The thread ends in that namespace; the process's others stay where they are.
        aside(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            raise_loopback()?;
            if addresses == Addresses::Any {
                allow_any_address()?;
            }
            Ok(Self(File::open("/proc/thread-self/ns/net")?.into()))
        })
    }

    /// That of a process.
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self(File::open(format!("/proc/{pid}/ns/net"))?.into()))
    }

    /// That of the calling thread.
    pub fn current() -> io::Result<Self> {
        Ok(Self(File::open("/proc/thread-self/ns/net")?.into()))
    }

    /// Brings the calling thread there. Sockets that it has made stay where they were made.
    pub fn enter(&self) -> io::Result<()> {
        Ok(setns(&self.0, CloneFlags::CLONE_NEWNET)?)
    }

    /// Does something there, while the calling thread stays where it is.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        aside(|| self.enter().and_then(|()| work()))
    }
}

impl AsFd for Network {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// In a thread of its own.
fn aside<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let done = std::thread::Builder::new().spawn_scoped(scope, work)?.join();
        done.unwrap_or_else(|_| Err(io::Error::other("a thread panicked in the network")))
    })
}

fn allow_any_address() -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    /// Of an address that is set aside for documentation, and is nobody's.
    const NOBODYS: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 0);

    #[test]
    fn ports_of_two_networks_are_not_the_same() {
        let (one, other) =
            (Network::make(Addresses::Loopback).unwrap(), Network::make(Addresses::Any).unwrap());
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 80));
        let (first, second) = (one.within(listen).unwrap(), other.within(listen).unwrap());
        for (network, listener) in [(&one, &first), (&other, &second)] {
            let _stream = network.within(|| TcpStream::connect((Ipv4Addr::LOCALHOST, 80))).unwrap();
            listener.accept().unwrap();
        }
        drop(second);
        let refused = other.within(|| TcpStream::connect((Ipv4Addr::LOCALHOST, 80))).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let bind = || TcpListener::bind(NOBODYS).map(drop);
        assert_eq!(one.within(bind).unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
        other.within(bind).unwrap();
    }

    #[test]
    fn the_thread_that_asks_stays_where_it_is() {
        let place = || fs::read_link("/proc/thread-self/ns/net");
        let before = place().unwrap();
        let made = Network::make(Addresses::Loopback).unwrap();
        let inside = made.within(place).unwrap();
        assert_ne!(inside, before);
        assert_eq!(place().unwrap(), before);
        std::thread::spawn(move || {
            let own = Network::current().unwrap();
            made.enter().unwrap();
            assert_eq!(place().unwrap(), inside);
            own.enter().unwrap();
            assert_eq!(place().unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn without_the_capability_there_is_none() {
        std::thread::spawn(|| {
            // Of `linux/capability.h`: version 3, for the calling thread.
            let head: [u32; 2] = [0x2008_0522, 0];
            let none = [0u32; 6];
            // SAFETY: both are whole structures that live across the call, which is the calling thread's alone.
            assert_eq!(unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), none.as_ptr()) }, 0);
            let error = Network::make(Addresses::Loopback).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        })
        .join()
        .unwrap();
    }
}
