//! Who is connected to whom by Unix sockets, as the kernel lists them (`sock_diag(7)`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::process;

/// The request's and the answers' numbers, of `linux/sock_diag.h` and `linux/unix_diag.h`.
const BY_FAMILY: u16 = 20;
const SHOW_NAME: u32 = 1;
const SHOW_PEER: u32 = 4;
const SHOW_WAITING: u32 = 8;
const NAME: u16 = 0;
const PEER: u16 = 2;
const WAITING: u16 = 3;
/// The length of a netlink message's head, of a socket in the list and of an attribute's head.
const HEAD: usize = 16;
const SOCKET: usize = 16;
const ATTRIBUTE: usize = 4;
/// A read gets whole messages, and the kernel's are at most this long.
const PIECE: usize = 1 << 16;

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
    // SAFETY: takes three integers and touches no memory of ours.
    let fd = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let request = request();
    // SAFETY: the request is read during the call.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut out = BTreeMap::new();
    let mut piece = vec![0; PIECE];
    loop {
        // SAFETY: at most the piece's length is written to it during the call.
        let got = unsafe { libc::recv(socket.as_raw_fd(), piece.as_mut_ptr().cast(), piece.len(), 0) };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        if !read(&piece[..got], &mut out)? {
            return Ok(out);
        }
    }
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
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let body = [&[libc::AF_UNIX as u8, 0, 0, 0][..], &u32::MAX.to_ne_bytes(), &[0; 4]];
    let body =
        [&body.concat()[..], &(SHOW_NAME | SHOW_PEER | SHOW_WAITING).to_ne_bytes(), &[0xff; 8]].concat();
    let length = (HEAD + body.len()) as u32;
    let head = [&length.to_ne_bytes()[..], &BY_FAMILY.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]];
    [&head.concat()[..], &body].concat()
}

/// Reads the messages of one answer; whether more come.
fn read(mut messages: &[u8], out: &mut BTreeMap<u32, Unix>) -> io::Result<bool> {
    let is_last = messages.is_empty();
    while let Some((kind, body)) = next(&mut messages, HEAD, |head| {
        (number(&head[..4]) as usize, u16::from_ne_bytes([head[4], head[5]]))
    }) {
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(false),
            libc::NLMSG_ERROR => {
                let code = body.get(..4).map_or(libc::EIO, |code| -(number(code) as i32));
                return Err(io::Error::from_raw_os_error(code));
            }
            _ => out.extend(one(body)),
        }
    }
    Ok(!is_last)
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

/// Takes the next of several things off the front, each with its length and kind in its head and a multiple of four long.
fn next<'a>(
    rest: &mut &'a [u8],
    head: usize,
    read: impl Fn(&[u8]) -> (usize, u16),
) -> Option<(u16, &'a [u8])> {
    let (length, kind) = read(rest.get(..head)?);
    let body = rest.get(head..length)?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body))
}

fn number(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
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
