//! Who is connected to whom by Unix sockets, as the kernel lists them (`sock_diag(7)`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::netlink::{Netlink, each, next, number};
use crate::process;

/// The request's and the answers' numbers, of `linux/sock_diag.h` and `linux/unix_diag.h`.
const BY_FAMILY: u16 = 20;
const SHOW_NAME: u32 = 1;
const SHOW_PEER: u32 = 4;
const SHOW_WAITING: u32 = 8;
const NAME: u16 = 0;
const PEER: u16 = 2;
const WAITING: u16 = 3;
/// The length of a socket in the list and of an attribute's head.
const SOCKET: usize = 16;
const ATTRIBUTE: usize = 4;

/// A Unix socket of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unix {
    pub is_datagram: bool,
    /// Zero as long as nobody has accepted the connection.
    pub peer: Option<u32>,
    /// Of a socket that listens: the sockets that nobody has accepted.
    pub waiting: Vec<u32>,
    /// An abstract one begins with `@`.
    pub name: Option<String>,
}

/// All Unix sockets by their inodes.
pub fn unix() -> io::Result<BTreeMap<u32, Unix>> {
    let mut netlink = Netlink::open()?;
    netlink.send(BY_FAMILY, libc::NLM_F_DUMP, &request())?;
    let mut out = BTreeMap::new();
    while read(netlink.receive()?, &mut out)? {}
    Ok(out)
}

/// The sockets of the processes `ours` that are connected to one of `theirs`, by their inodes, in order.
pub fn connected(ours: &[i32], theirs: &[i32]) -> io::Result<Vec<u32>> {
    let of =
        |pids: &[i32]| pids.iter().flat_map(|pid| process::sockets(*pid)).map(|inode| inode as u32).collect();
    let (ours, theirs): (BTreeSet<u32>, BTreeSet<u32>) = (of(ours), of(theirs));
    let all = unix()?;
    let is_connected = |inode: &u32| {
        all.get(inode).and_then(|socket| socket.peer).is_some_and(|peer| theirs.contains(&peer))
    };
    Ok(ours.into_iter().filter(is_connected).collect())
}

/// For all sockets, whatever their state.
fn request() -> Vec<u8> {
    let body = [&[libc::AF_UNIX as u8, 0, 0, 0][..], &u32::MAX.to_ne_bytes(), &[0; 4]].concat();
    [&body[..], &(SHOW_NAME | SHOW_PEER | SHOW_WAITING).to_ne_bytes(), &[0xff; 8]].concat()
}

/// Reads the messages of one answer; whether more come.
fn read(messages: &[u8], out: &mut BTreeMap<u32, Unix>) -> io::Result<bool> {
    each(messages, |body| out.extend(one(body)))
}

fn one(body: &[u8]) -> Option<(u32, Unix)> {
    let (socket, mut attributes) = body.split_at_checked(SOCKET)?;
    let mut unix = Unix {
        is_datagram: i32::from(socket[1]) == libc::SOCK_DGRAM,
        peer: None,
        waiting: Vec::new(),
        name: None,
    };
    while let Some((kind, value)) = next(&mut attributes, ATTRIBUTE, |head| {
        (u16::from_ne_bytes([head[0], head[1]]).into(), u16::from_ne_bytes([head[2], head[3]]))
    }) {
        match kind {
            NAME => {
                unix.name = Some(String::from_utf8_lossy(value).trim_end_matches('\0').replace('\0', "@"))
            }
            WAITING => unix.waiting = value.chunks_exact(4).map(number).collect(),
            PEER if value.len() == 4 => unix.peer = Some(number(value)),
            _ => {}
        }
    }
    Some((number(&socket[4..8]), unix))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_ends_of_a_connection_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service");
        let listener = UnixListener::bind(&path).unwrap();
        let near = UnixStream::connect(&path).unwrap();
        let inode = |socket: &dyn AsFd| nix::sys::stat::fstat(socket.as_fd()).unwrap().st_ino as u32;
        let all = unix().unwrap();
        assert_eq!(all[&inode(&near)].peer, Some(0));
        assert_eq!(all[&inode(&listener)].waiting, [inode(&near)]);
        let (far, _) = listener.accept().unwrap();
        let all = unix().unwrap();
        let (ours, theirs) = (&all[&inode(&near)], &all[&inode(&far)]);
        assert_eq!((ours.peer, theirs.peer), (Some(inode(&far)), Some(inode(&near))));
        assert_eq!((ours.is_datagram, ours.name.as_deref()), (false, None));
        assert_eq!(theirs.name.as_deref(), path.to_str());
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes: Vec<u8>) {
            let mut out = BTreeMap::new();
            let _ = read(&bytes, &mut out);
            one(&bytes);
        }
    }
}
