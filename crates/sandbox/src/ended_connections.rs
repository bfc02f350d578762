//! Connections that have ended, and whose ports the kernel keeps for a minute (`TIME_WAIT`).
//!
//! A program's sockets are bound anew when it is restored, those of connections within it, too. The kernel refuses that where
//! an earlier run of the program has just let such a connection end, unless both said that they share (`SO_REUSEADDR`): most
//! who connect do not. So it is told to forget what has ended at these addresses (`SOCK_DESTROY`, Linux 4.5).

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::netlink::{Netlink, failure, message};

const DESTROY: u16 = 21;

/// Forgets these connections, each with its own address and the other side's. What the kernel does not do is not done: who needs
/// the addresses is told by it that they are in use.
pub fn forget(ended: &[(SocketAddr, SocketAddr)]) {
    if ended.is_empty() {
        return;
    }
    let all =
        |mut netlink: Netlink| ended.iter().try_for_each(|(own, other)| destroy(&mut netlink, *own, *other));
    if let Err(error) = Netlink::open().and_then(all) {
        log::warn!("connections that have ended keep their ports for a while: {error}");
    }
}

fn destroy(netlink: &mut Netlink, own: SocketAddr, other: SocketAddr) -> io::Result<()> {
    netlink.send(DESTROY, libc::NLM_F_ACK, &request(own, other))?;
    let mut answer = netlink.receive()?;
    match message(&mut answer) {
        Some((kind, body)) if i32::from(kind) == libc::NLMSG_ERROR => match failure(body) {
            // It is gone.
            Some(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            Some(error) => Err(error),
            None => Ok(()),
        },
        _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

/// `inet_diag_req_v2`: of TCP, in any state, whatever its cookie.
fn request(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let family = if own.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let host = |address: SocketAddr| {
        let mut host = [0; 16];
        match address.ip() {
            IpAddr::V4(ip) => host[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => host.copy_from_slice(&ip.octets()),
        }
        host
    };
    [
        &[family as u8, libc::IPPROTO_TCP as u8, 0, 0][..],
        &u32::MAX.to_ne_bytes(),
        &own.port().to_be_bytes(),
        &other.port().to_be_bytes(),
        &host(own),
        &host(other),
        &[0; 4],
        &[0xff; 8],
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::ports;

    #[test]
    fn the_address_of_a_connection_that_has_ended_is_free() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let address = listener.local_addr().unwrap();
            let near = TcpStream::connect(address).unwrap();
            let (own, mut far) = (near.local_addr().unwrap(), listener.accept().unwrap().0);
            drop(near);
            assert_eq!(far.read(&mut [0]).unwrap(), 0);
            drop(far);
            // Where others' connections come and go, a row is read twice, or not at all.
            let kept =
                || ports::ended().into_iter().filter(|(kept, _)| *kept == own).collect::<BTreeSet<_>>();
            let seen = (0..100).map(|_| kept()).find(|rows| !rows.is_empty()).unwrap_or_default();
            assert_eq!(seen, BTreeSet::from([(own, address)]));
            forget(&seen.into_iter().collect::<Vec<_>>());
            // Who may not ask the kernel for it sees it kept.
            if nix::unistd::geteuid().is_root() {
                assert_eq!(kept(), BTreeSet::new());
            }
        }
    }
}
