//! The machine's sockets of TCP, as the kernel lists them (`sock_diag(7)`).
//!
//! The kernel goes through its table bucket by bucket, each under its lock, and tells in pieces. Where a piece ends within a
//! bucket, it goes on by the place in it: what came or went meanwhile is the reason that others are told of twice, or not at
//! all. `/proc/net/tcp` is read so, and in small pieces. Here the kernel is asked for certain ports alone, and tells of a
//! few hundred sockets in one piece.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::netlink::{Netlink, each, failure, message, number};

/// The requests' numbers, and the attribute with conditions, of `linux/sock_diag.h` and `linux/inet_diag.h`.
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const CONDITIONS: u16 = 1;
/// A condition on a socket's own address, and what goes on elsewhere.
const OWN_ADDRESS: u8 = 7;
const JUMP: u8 = 1;
/// The length of a jump; of a condition, and of one with the jump behind it.
const STEP: usize = 4;
const CONDITION: usize = 12;
const CONDITION_AND_JUMP: usize = CONDITION + STEP;
/// A request asks for so many ports: a jump says its length in 16 bits.
const PORTS: usize = 1024;
/// The length of a socket in the list; of what tells it from others, and where that lies.
const SOCKET: usize = 72;
const ID: usize = 48;
const ID_AT: usize = 4;

/// What becomes of a socket, by the kernel's number for it.
#[derive(Debug, Clone, Copy)]
pub enum State {
    /// A connection whose addresses the kernel keeps for a while (`TIME_WAIT`).
    Ended = 6,
    Listens = 10,
}

/// A socket of TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tcp {
    pub own: SocketAddr,
    pub other: SocketAddr,
    /// Zero of one that has ended.
    pub inode: u32,
    /// `inet_diag_sockid`: addresses, device, and a number that no other socket gets.
    id: [u8; ID],
}

/// The sockets in a state whose own port is one of these.
pub fn at_ports(state: State, ports: &BTreeSet<u16>) -> io::Result<BTreeSet<Tcp>> {
    let mut out = BTreeSet::new();
    if ports.is_empty() {
        return Ok(out);
    }
    let mut netlink = Netlink::open()?;
    let ports: Vec<u16> = ports.iter().copied().collect();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for some in ports.chunks(PORTS) {
            netlink.send(BY_FAMILY, libc::NLM_F_DUMP, &list(family, state, some))?;
            while read(netlink.receive()?, &mut out)? {}
        }
    }
    Ok(out)
}

impl Tcp {
    /// Has the kernel end it; one that is gone has ended.
    pub fn destroy(&self, netlink: &mut Netlink) -> io::Result<()> {
        let family = if self.own.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        netlink.send(DESTROY, libc::NLM_F_ACK, &request(family, u32::MAX, &self.id))?;
        let mut answer = netlink.receive()?;
        match message(&mut answer) {
            Some((kind, body)) if i32::from(kind) == libc::NLMSG_ERROR => match failure(body) {
                Some(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                // Another has its addresses.
                Some(error) if error.raw_os_error() == Some(libc::ESTALE) => Ok(()),
                Some(error) => Err(error),
                None => Ok(()),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The ports of addresses.
pub fn ports(addresses: &[SocketAddr]) -> BTreeSet<u16> {
    addresses.iter().map(SocketAddr::port).collect()
}

/// Whether only one of the two can be had. An address of IPv6 for all is left to the kernel to compare with those of IPv4.
pub fn overlap(one: &SocketAddr, other: &SocketAddr) -> bool {
    one.port() == other.port()
        && one.is_ipv4() == other.is_ipv4()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}

/// `inet_diag_req_v2`.
fn request(family: i32, states: u32, id: &[u8; ID]) -> Vec<u8> {
    [&[family as u8, libc::IPPROTO_TCP as u8, 0, 0][..], &states.to_ne_bytes(), id].concat()
}

/// For the sockets with one of these ports.
fn list(family: i32, state: State, ports: &[u16]) -> Vec<u8> {
    let conditions = conditions(ports);
    let length = (STEP + conditions.len()) as u16;
    let attribute = [&length.to_ne_bytes()[..], &CONDITIONS.to_ne_bytes(), &conditions].concat();
    [request(family, 1 << state as u32, &[0; ID]), attribute].concat()
}

/// A program for the kernel that accepts each of these ports: who comes to its end is accepted, who jumps behind that is not.
fn conditions(ports: &[u16]) -> Vec<u8> {
    let all = (ports.len() * CONDITION_AND_JUMP).saturating_sub(STEP);
    let mut out = Vec::with_capacity(all);
    for port in ports {
        let is_last = out.len() + CONDITION == all;
        // Not this port: to the next condition, or behind the end.
        out.extend([OWN_ADDRESS, CONDITION as u8]);
        out.extend((CONDITION_AND_JUMP as u16).to_ne_bytes());
        // Of any family, and no bits of the address.
        out.extend([libc::AF_UNSPEC as u8, 0, 0, 0]);
        out.extend(i32::from(*port).to_ne_bytes());
        if !is_last {
            let to_end = (all - out.len()) as u16;
            out.extend([JUMP, STEP as u8]);
            out.extend(to_end.to_ne_bytes());
        }
    }
    out
}

/// Reads the messages of one piece; whether more come.
fn read(messages: &[u8], out: &mut BTreeSet<Tcp>) -> io::Result<bool> {
    each(messages, |body| out.extend(one(body)))
}

/// `inet_diag_msg`.
fn one(body: &[u8]) -> Option<Tcp> {
    let socket = body.get(..SOCKET)?;
    let id: [u8; ID] = socket[ID_AT..ID_AT + ID].try_into().ok()?;
    let port = |at: usize| u16::from_be_bytes([id[at], id[at + 1]]);
    let host = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = id[at..at + 16].try_into().ok()?;
        match i32::from(socket[0]) {
            libc::AF_INET => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
            libc::AF_INET6 => Some(Ipv6Addr::from(bytes).into()),
            _ => None,
        }
    };
    Some(Tcp {
        own: SocketAddr::new(host(4)?, port(0)),
        other: SocketAddr::new(host(20)?, port(2)),
        inode: number(&socket[SOCKET - 4..]),
        id,
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sockets_that_listen_are_found_by_their_ports_alone() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let all: Vec<_> = (0..5).filter_map(|_| TcpListener::bind(host).ok()).collect();
            let wanted: Vec<_> = all.iter().take(3).map(|socket| socket.local_addr().unwrap()).collect();
            let found = at_ports(State::Listens, &ports(&wanted)).unwrap();
            assert!(found.iter().all(|socket| ports(&wanted).contains(&socket.own.port())));
            let inode = |socket: &TcpListener| nix::sys::stat::fstat(socket.as_fd()).unwrap().st_ino as u32;
            for (socket, address) in all.iter().zip(&wanted) {
                let known = found.iter().find(|known| known.own == *address);
                assert_eq!(known.map(|known| known.inode), Some(inode(socket)));
            }
        }
    }

    #[test]
    fn more_ports_than_go_into_one_request_are_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let has_own = |ports: BTreeSet<u16>| {
            at_ports(State::Listens, &ports).unwrap().iter().any(|socket| socket.own == own)
        };
        assert!(has_own((1..=u16::MAX).collect()));
        assert!(!has_own((1..=u16::MAX).filter(|port| *port != own.port()).collect()));
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes: Vec<u8>) {
            let mut out = BTreeSet::new();
            let _ = read(&bytes, &mut out);
            one(&bytes);
        }
    }
}
