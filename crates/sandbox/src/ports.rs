//! The ports that a program listens on, which a restore wants again.
//!
//! CRIU lets every socket share its port while it binds, so that those of one program can; the kernel then lets those of
//! two programs, and gives one of them every connection. So a restore reserves the ports before anything is touched, and
//! until its sockets listen: none of them may be in use by anybody else, unless the program said itself that it shares.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::descriptors::{Described, FILES, Internet, LISTENS, address};
use crate::ended_connections;
use crate::error::{Error, Result};
use crate::pages::image::Entries;
use crate::process;

/// A socket that listens, and a connection that has ended, in the kernel's table.
const LISTENING: &str = "0A";
const ENDED: &str = "06";

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
    if !alone.is_empty() {
        let is_meant = |(own, _): &(SocketAddr, SocketAddr)| alone.iter().any(|one| overlap(one, own));
        ended_connections::forget(&ended().into_iter().filter(is_meant).collect::<Vec<_>>());
    }
    if wanted.is_empty() {
        return Ok(Reserved(wanted));
    }
    let mut reserved = reserved();
    if let Some(address) = wanted.iter().find(|address| reserved.iter().any(|other| overlap(address, other)))
    {
        return Err(Error::PortTaken { address: *address, by: "another restore".into() });
    }
    for (other, inode) in listening() {
        if let Some(address) = wanted.iter().find(|address| overlap(address, &other)) {
            return Err(Error::PortTaken { address: *address, by: holder(inode) });
        }
    }
    reserved.extend(&wanted);
    Ok(Reserved(wanted))
}

/// Who listens on a port of the machine's, at whatever address.
pub fn who_listens(port: u16) -> Option<String> {
    let mut all = listening().into_iter();
    all.find(|(address, _)| address.port() == port).map(|(_, inode)| holder(inode))
}

/// The addresses where somebody listens, and the sockets' inodes.
fn listening() -> Vec<(SocketAddr, u64)> {
    all().into_iter().filter(|row| row.state == LISTENING).map(|row| (row.own, row.inode)).collect()
}

/// Connections that have ended and whose addresses the kernel keeps: their own, and the other side's.
pub fn ended() -> Vec<(SocketAddr, SocketAddr)> {
    all().into_iter().filter(|row| row.state == ENDED).map(|row| (row.own, row.other)).collect()
}

/// The machine's sockets of TCP.
fn all() -> Vec<Row> {
    let table = |name: &str| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
    [table("tcp"), table("tcp6")].concat().lines().filter_map(Row::read).collect()
}

/// Who has a socket.
fn holder(inode: u64) -> String {
    let found = process::all().into_iter().find(|pid| process::sockets(*pid).contains(&inode));
    found.map_or("a process that cannot be seen from here".into(), |pid| {
        format!("process {pid} ({})", process::name(pid))
    })
}

/// Whether only one of the two can listen. An address of IPv6 for all is left to the kernel to compare with those of IPv4.
fn overlap(one: &SocketAddr, other: &SocketAddr) -> bool {
    one.port() == other.port()
        && one.is_ipv4() == other.is_ipv4()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
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

/// A line of the kernel's table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    own: SocketAddr,
    other: SocketAddr,
    state: String,
    inode: u64,
}

impl Row {
    fn read(line: &str) -> Option<Row> {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        Some(Row {
            own: host(words.get(1)?)?,
            other: host(words.get(2)?)?,
            state: words.get(3)?.to_string(),
            inode: words.get(9)?.parse().ok()?,
        })
    }
}

/// An address as the table has it: words of eight digits, and the port.
fn host(text: &str) -> Option<SocketAddr> {
    let (hosted, port) = text.split_once(':').filter(|(hosted, _)| hosted.is_ascii())?;
    let word = |at: usize| u32::from_str_radix(hosted.get(at..at + 8)?, 16).ok();
    let host: Option<Vec<u32>> = (0..hosted.len() / 8).map(|index| word(index * 8)).collect();
    let host = host.filter(|host| [1, 4].contains(&host.len()))?;
    Some(SocketAddr::new(address(&host)?, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
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
            drop(first);
            let held = reserve(images(address, 0).path()).unwrap();
            let said = reserve(images(all, 0).path()).unwrap_err().to_string();
            assert!(said.contains("another restore"), "{said}");
            drop(held);
            assert!(reserve(images(all, 0).path()).is_ok());
        }
    }

    #[test]
    fn lines_of_the_kernel_s_table_are_read() {
        let read = |line: &str| {
            Row::read(line).map(|row| (row.own.to_string(), row.other.to_string(), row.state, row.inode))
        };
        let line = "   0: 0100007F:1F90 0200007F:0050 06 0:0 00:0 0 0 0 77 1";
        let (own, other) = ("127.0.0.1:8080".to_string(), "127.0.0.2:80".to_string());
        assert_eq!(read(line), Some((own, other, ENDED.to_string(), 77)));
        assert_eq!(read("  sl  local_address rem_address   st"), None);
        let any = "00000000000000000000000000000000:0000";
        let wide = format!("0: 00000000000000000000000001000000:0050 {any} 0A 0:0 00:0 0 0 0 78 1");
        assert_eq!(read(&wide), Some(("[::1]:80".into(), "[::]:0".into(), LISTENING.to_string(), 78)));
    }
}
