//! The ports that a program listens on, which a restore wants again.
//!
//! CRIU lets every socket share its port while it binds, so that those of one program can; the kernel then lets those of
//! two programs, and gives one of them every connection. So a restore reserves the ports before anything is touched, and
//! until its sockets listen: none of them may be in use by anybody else, unless the program said itself that it shares.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::descriptors::{Described, FILES, Internet, LISTENS};
use crate::ended_connections;
use crate::error::{Error, Result};
use crate::pages::image::Entries;
use crate::process;
use crate::tcp::{self, State, overlap, ports};

/// Those of restores under way.
static RESERVED: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());

fn reserved() -> MutexGuard<'static, BTreeSet<SocketAddr>> {
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ports that nobody else's restore gets meanwhile.
#[derive(Debug)]
pub struct Reserved(Vec<SocketAddr>);

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut reserved = reserved();
        for address in &self.0 {
            reserved.remove(address);
        }
    }
}

/// Reserves what the dump in `images` listens on.
pub fn reserve(images: &Path) -> Result<Reserved> {
    let path = images.join(FILES);
    // What is wrong with the images CRIU says.
    let Ok(files) = Entries::read(&path) else { return Ok(Reserved(Vec::new())) };
    let wanted =
        addresses(&files, |socket| socket.state() == Some(LISTENS) && socket.shares_port() == Some(false));
    let alone = addresses(&files, |socket| socket.shares_address() == Some(false));
    ended_connections::forget(&alone);
    let mut reserved = reserved();
    if let Some(address) = wanted.iter().find(|address| reserved.iter().any(|other| overlap(address, other)))
    {
        return Err(Error::PortTaken { address: *address, by: "another restore".into() });
    }
    let listening = tcp::at_ports(State::Listens, &ports(&wanted))
        .map_err(Error::io("the kernel did not say who listens on the program's ports"))?;
    for other in listening {
        if let Some(address) = wanted.iter().find(|address| overlap(address, &other.own)) {
            return Err(Error::PortTaken { address: *address, by: holder(other.inode.into()) });
        }
    }
    reserved.extend(&wanted);
    Ok(Reserved(wanted))
}

/// Who listens on a port of the machine's, at whatever address; none if nobody does, or the kernel does not say.
pub fn who_listens(port: u16) -> Option<String> {
    let all = tcp::at_ports(State::Listens, &[port].into()).ok()?;
    all.first().map(|socket| holder(socket.inode.into()))
}

/// Who has a socket.
fn holder(inode: u64) -> String {
    let found = process::all().into_iter().find(|pid| process::sockets(*pid).contains(&inode));
    found.map_or("a process that cannot be seen from here".into(), |pid| {
        format!("process {pid} ({})", process::name(pid))
    })
}

/// Those of the sockets of TCP that are meant.
fn addresses(files: &Entries, is_meant: impl Fn(&Internet) -> bool) -> Vec<SocketAddr> {
    let sockets = Internet::all(&files.entries).filter(|socket| socket.is_tcp() && is_meant(socket));
    let address = |socket: Internet| Some(SocketAddr::new(socket.source_address()?, socket.source_port()?));
    let mut out: Vec<_> = sockets.filter_map(address).collect();
    out.sort_unstable();
    out.dedup();
    out
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{IpAddr, TcpListener};

    use super::*;
    use crate::pages::image::with_length;
    use crate::proto::Encoder;

    /// A dump with one socket that listens there.
    fn images(address: SocketAddr, shared: u64) -> tempfile::TempDir {
        let (family, bytes) = match address.ip() {
            IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
            IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
        };
        let mut options = Encoder::default();
        options.number(7, 1).number(17, shared);
        let mut socket = Encoder::default();
        socket.number(3, family as u64).number(5, 6).number(6, LISTENS).number(7, address.port().into());
        for word in bytes.chunks(4) {
            socket.number(11, u32::from_ne_bytes(word.try_into().unwrap()).into());
        }
        socket.bytes(14, &options.0);
        let mut file = Encoder::default();
        file.number(1, 4).bytes(4, &socket.0);
        let dir = tempfile::tempdir().unwrap();
        let text = [&b"headhead"[..], &with_length(&file.0)].concat();
        fs::write(dir.path().join(FILES), text).unwrap();
        dir
    }

    #[test]
    fn a_port_is_had_by_one_unless_it_is_shared() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(first) = TcpListener::bind(host) else { continue };
            let address = first.local_addr().unwrap();
            let all = SocketAddr::new(
                if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() },
                address.port(),
            );
            for wanted in [address, all] {
                let said = reserve(images(wanted, 0).path()).unwrap_err().to_string();
                let own = format!("process {} (", std::process::id());
                assert!(said.contains(&wanted.to_string()) && said.contains(&own), "{said}");
                assert!(reserve(images(wanted, 1).path()).is_ok(), "the program shares it itself");
            }
            // One that nobody had: a child that another test begins has this process's sockets for a moment, also those closed by then.
            let unused =
                (20_000 + std::process::id() as u16 % 10_000..).find(|port| who_listens(*port).is_none());
            let [address, all] = [address, all].map(|one| SocketAddr::new(one.ip(), unused.unwrap()));
            let held = reserve(images(address, 0).path()).unwrap();
            let said = reserve(images(all, 0).path()).unwrap_err().to_string();
            assert!(said.contains("another restore"), "{said}");
            drop(held);
            assert!(reserve(images(all, 0).path()).is_ok());
        }
    }
}
