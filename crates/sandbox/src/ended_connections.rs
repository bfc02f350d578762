//! Connections that have ended, and whose ports the kernel keeps for a minute (`TIME_WAIT`).
//!
//! A program's sockets are bound anew when it is restored, those of connections within it, too. The kernel refuses that where
//! an earlier run of the program has just let such a connection end, unless both said that they share (`SO_REUSEADDR`): most
//! who connect do not. So it is told to forget what has ended at these addresses (`SOCK_DESTROY`, Linux 4.5).

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use crate::netlink::Netlink;
use crate::tcp::{State, Tcp, at_ports, overlap, ports};

/// So often the kernel is asked what there is yet. What it does not tell in one piece may be told only in part.
const LOOKS: usize = 20;

/// Forgets what has ended at these addresses. What the kernel does not do is not done: who needs the addresses is told by it
/// that they are in use.
pub fn forget(addresses: &[SocketAddr]) {
    if let Err(error) = forget_all(addresses) {
        log::warn!("connections that have ended keep their ports for a while: {error}");
    }
}

/// Until there are none.
fn forget_all(addresses: &[SocketAddr]) -> io::Result<()> {
    for _ in 0..LOOKS {
        let ended = ended(addresses)?;
        if ended.is_empty() {
            return Ok(());
        }
        let mut netlink = Netlink::open()?;
        ended.iter().try_for_each(|connection| connection.destroy(&mut netlink))?;
    }
    Err(io::Error::other(format!("after {LOOKS} looks there were more of them")))
}

/// Those whose own address is one of these.
fn ended(addresses: &[SocketAddr]) -> io::Result<BTreeSet<Tcp>> {
    let mut ended = at_ports(State::Ended, &ports(addresses))?;
    ended.retain(|connection| addresses.iter().any(|address| overlap(address, &connection.own)));
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};

    use super::*;

    /// A connection from one of this machine's addresses; from those of a test's own nobody else has ports.
    fn connected(from: SocketAddr, to: SocketAddr) -> TcpStream {
        let family = if from.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(socket.as_raw_fd(), &SockaddrStorage::from(from)).unwrap();
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
        socket.into()
    }

    /// Connections to a listener that have ended, the near side first: the near sides' addresses, in order.
    fn end_some(from: &str, listener: &TcpListener, count: usize) -> Vec<SocketAddr> {
        let end_one = || {
            let near = connected(from.parse().unwrap(), listener.local_addr().unwrap());
            let (own, mut far) = (near.local_addr().unwrap(), listener.accept().unwrap().0);
            drop(near);
            assert_eq!(far.read(&mut [0]).unwrap(), 0);
            own
        };
        let mut all: Vec<_> = std::iter::repeat_with(end_one).take(count).collect();
        all.sort_unstable();
        all
    }

    /// Of the connections to a listener that have ended: others may have had the same ports.
    fn kept(own: &[SocketAddr], listener: &TcpListener) -> Vec<SocketAddr> {
        let other = listener.local_addr().unwrap();
        ended(own).unwrap().into_iter().filter(|one| one.other == other).map(|one| one.own).collect()
    }

    /// Whether who asks may have the kernel forget.
    fn may_destroy() -> bool {
        nix::unistd::geteuid().is_root()
    }

    #[test]
    fn the_address_of_a_connection_that_has_ended_is_free() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let own = end_some(host, &listener, 1);
            assert_eq!(kept(&own, &listener), own);
            forget(&own);
            assert_eq!(kept(&own, &listener).is_empty(), may_destroy());
        }
    }

    #[test]
    fn a_connection_that_has_come_in_place_of_one_that_has_ended_is_left_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = end_some("127.0.0.78:0", &listener, 1);
        let address = listener.local_addr().unwrap();
        let seen = ended(&own).unwrap().into_iter().find(|one| one.other == address).unwrap();
        forget(&own);
        if !may_destroy() {
            return;
        }
        let mut again = connected(own[0], address);
        let mut far = listener.accept().unwrap().0;
        seen.destroy(&mut Netlink::open().unwrap()).unwrap();
        again.write_all(b"x").unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 1);
    }

    /// Says that something is over, also if it has failed.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn none_is_missed_while_others_come_and_go() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = end_some("127.0.0.77:0", &listener, 200);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Over(&is_over);
            for _ in 0..3 {
                scope.spawn(|| {
                    let other = TcpListener::bind("127.0.0.1:0").unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        forget(&end_some("127.0.0.1:0", &other, 20));
                    }
                });
            }
            // The kernel keeps them for a minute.
            let began = std::time::Instant::now();
            for _ in 0..100 {
                assert_eq!(kept(&own, &listener), own);
                if began.elapsed().as_secs() > 20 {
                    break;
                }
            }
        });
        forget(&own);
        assert_eq!(kept(&own, &listener).is_empty(), may_destroy());
    }

    #[test]
    fn more_at_one_port_than_the_kernel_tells_in_a_piece_are_all_forgotten() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for _ in 0..1500 {
            let mut near = TcpStream::connect(address).unwrap();
            drop(listener.accept().unwrap());
            assert_eq!(near.read(&mut [0]).unwrap(), 0);
        }
        let count = || ended(&[address]).unwrap().len();
        // A piece has some hundreds. A connection that gets the port of an earlier one takes its place, so that there may be
        // fewer than were made.
        let began = std::time::Instant::now();
        while count() < 1000 && began.elapsed().as_secs() < 20 {}
        assert!(count() >= 1000);
        forget(&[address]);
        assert_eq!(count() == 0, may_destroy());
    }
}
