//! TCP connections of a program: those with itself come along, as NCCL and process groups make them; those to anybody
//! else are cut ([`crate::severed`]).
//!
//! Connections with itself are read out of the kernel, which nothing may come into meanwhile: with both ends standing
//! still nothing does. What is connected to others is not touched, so that it goes on if the program does.
//!
//! Each socket is asked by itself. The kernel's tables of all connections take it milliseconds, however few there are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};

use crate::process::{self, Handle};

/// Of the kernel's `SO_NETNS_COOKIE`, which a kernel before 5.14 does not know.
const NETWORK: libc::c_int = 71;

/// A connected socket: its network, its own address and the other end's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Connection {
    network: u64,
    local: SocketAddr,
    remote: SocketAddr,
}

/// What TCP sockets some processes have.
#[derive(Debug)]
pub struct Found {
    /// The inodes of those that the processes have connected to each other.
    pub inside: BTreeSet<u64>,
    /// Whether all listen, or are not yet bound: then there are no connections, nor what is left of some.
    pub all_listen: bool,
}

/// The inodes of sockets that the processes have connected to each other.
pub fn inside(pids: &[i32]) -> BTreeSet<u64> {
    find(pids).inside
}

/// The same, and whether there are others than such that listen.
pub fn find(pids: &[i32]) -> Found {
    let mut seen = BTreeSet::new();
    let mut found = BTreeMap::new();
    let mut all_listen = true;
    for &pid in pids {
        // One that has ended meanwhile has none.
        let Ok(process) = Handle::open(pid) else { continue };
        for (descriptor, inode) in process::socket_descriptors(pid).filter(|(_, inode)| seen.insert(*inode)) {
            let Ok(socket) = process.descriptor(descriptor) else {
                all_listen = false;
                continue;
            };
            if !is_tcp(&socket) {
                continue;
            }
            all_listen = all_listen && (listens(&socket) || is_unbound(&socket));
            if let Some(connection) = Connection::of(&socket) {
                found.insert(connection, inode);
            }
        }
    }
    let is_mirrored = |connection: &Connection| found.contains_key(&connection.mirrored());
    let inside = found.iter().filter(|(connection, _)| is_mirrored(connection)).map(|(_, inode)| *inode);
    Found { inside: inside.collect(), all_listen }
}

fn is_tcp(socket: &OwnedFd) -> bool {
    let family = option::<i32>(socket, libc::SO_DOMAIN);
    family.is_some_and(|family| [libc::AF_INET, libc::AF_INET6].contains(&family))
        && option(socket, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

fn listens(socket: &OwnedFd) -> bool {
    option(socket, libc::SO_ACCEPTCONN) == Some(1)
}

/// One that is not bound has never been connected.
fn is_unbound(socket: &OwnedFd) -> bool {
    let own = getsockname::<SockaddrStorage>(socket.as_raw_fd()).ok();
    own.as_ref().and_then(address).is_some_and(|own| own.port() == 0)
}

impl Connection {
    /// None of a socket of TCP's that is not connected.
    fn of(socket: &OwnedFd) -> Option<Self> {
        let network = option(socket, NETWORK).unwrap_or(0);
        let remote = address(&getpeername(socket.as_raw_fd()).ok()?)?;
        let local = address(&getsockname(socket.as_raw_fd()).ok()?)?;
        Some(Self { network, local, remote })
    }

    fn mirrored(&self) -> Self {
        Self { network: self.network, local: self.remote, remote: self.local }
    }
}

/// One end may be written as an IPv4 address in IPv6.
fn address(of: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(of) = of.as_sockaddr_in() {
        return Some(SocketAddr::new(IpAddr::V4(of.ip()), of.port()));
    }
    let of = of.as_sockaddr_in6()?;
    Some(SocketAddr::new(IpAddr::V6(of.ip()).to_canonical(), of.port()))
}

/// An option that a socket tells as a number of this size.
pub(crate) fn option<T: Default>(socket: &OwnedFd, name: libc::c_int) -> Option<T> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: both are written during the call, and the length is that of the value; it is only called with integers, which
    // may hold any bytes.
    let done = unsafe {
        let fd = socket.as_raw_fd();
        libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length)
    };
    (done == 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    fn inode(socket: &impl AsRawFd) -> u64 {
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        link.to_str().unwrap().trim_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap()
    }

    fn is_inside(socket: &impl AsRawFd) -> bool {
        inside(&[std::process::id() as i32]).contains(&inode(socket))
    }

    #[test]
    fn both_ends_of_a_process_s_own_connections_are_found() {
        let addresses = [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]"), ("[::]:0", "127.0.0.1")];
        for (bound, called) in addresses {
            let Ok(listener) = TcpListener::bind(bound) else { continue };
            let port = listener.local_addr().unwrap().port();
            let stream = TcpStream::connect(format!("{called}:{port}")).unwrap();
            assert!(!is_inside(&stream), "{bound}: nobody has accepted it");
            let (other, _) = listener.accept().unwrap();
            assert!(is_inside(&stream) && is_inside(&other), "{bound}");
            assert!(!is_inside(&listener), "{bound}");
            drop(other);
            assert!(!is_inside(&stream), "{bound}: the other end is closed");
        }
    }

    #[test]
    fn datagrams_are_no_connections() {
        let (one, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        one.connect(other.local_addr().unwrap()).unwrap();
        other.connect(one.local_addr().unwrap()).unwrap();
        assert!(!is_inside(&one) && !is_inside(&other));
    }

    #[test]
    fn connections_with_others_are_not_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let program = format!("exec 9<>/dev/tcp/127.0.0.1/{}; echo; read", address.port());
        let mut child = std::process::Command::new("bash")
            .args(["-c", &program])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        assert!(!is_inside(&stream));
        let both = [std::process::id() as i32, child.id() as i32];
        assert!(inside(&both).contains(&inode(&stream)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
