//! Messages to and from the kernel's list of sockets (`sock_diag(7)`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The length of a message's head.
pub const HEAD: usize = 16;
/// A read gets whole messages, and the kernel's are at most this long.
const PIECE: usize = 1 << 16;

/// A connection to the kernel.
pub struct Netlink {
    socket: OwnedFd,
    piece: Vec<u8>,
}

impl Netlink {
    pub fn open() -> io::Result<Netlink> {
        // SAFETY: takes three integers and touches no memory of ours.
        let fd = unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Netlink { socket, piece: vec![0; PIECE] })
    }

    pub fn send(&self, kind: u16, flags: i32, body: &[u8]) -> io::Result<()> {
        let length = (HEAD + body.len()) as u32;
        let flags = (libc::NLM_F_REQUEST | flags) as u16;
        let head = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]].concat();
        let message = [&head, body].concat();
        // SAFETY: the message is read during the call.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The next messages.
    pub fn receive(&mut self) -> io::Result<&[u8]> {
        let (to, room) = (self.piece.as_mut_ptr().cast(), self.piece.len());
        // SAFETY: at most the piece's length is written to it during the call.
        let got = unsafe { libc::recv(self.socket.as_raw_fd(), to, room, 0) };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        Ok(&self.piece[..got])
    }
}

/// Takes the next message off the front: its kind and its body.
pub fn message<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    next(rest, HEAD, |head| (number(&head[..4]) as usize, u16::from_ne_bytes([head[4], head[5]])))
}

/// Takes the next of several things off the front, each with its length and kind in its head and a multiple of four long.
pub fn next<'a>(
    rest: &mut &'a [u8],
    head: usize,
    read: impl Fn(&[u8]) -> (usize, u16),
) -> Option<(u16, &'a [u8])> {
    let (length, kind) = read(rest.get(..head)?);
    let body = rest.get(head..length)?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body))
}

/// Gives the body of each message of one piece of a list; whether more come.
pub fn each(mut messages: &[u8], mut take: impl FnMut(&[u8])) -> io::Result<bool> {
    let is_last = messages.is_empty();
    while let Some((kind, body)) = message(&mut messages) {
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(false),
            libc::NLMSG_ERROR => {
                return Err(failure(body).unwrap_or_else(|| io::ErrorKind::InvalidData.into()));
            }
            _ => take(body),
        }
    }
    Ok(!is_last)
}

/// What a message of kind `NLMSG_ERROR` says; nothing if all went well.
pub fn failure(body: &[u8]) -> Option<io::Error> {
    let code = body.get(..4).map_or(libc::EIO, |code| -(number(code) as i32));
    (code != 0).then(|| io::Error::from_raw_os_error(code))
}

pub fn number(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}
