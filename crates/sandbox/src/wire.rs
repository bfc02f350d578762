//! Messages with file descriptors over a Unix stream socket: a four-byte little-endian length, then JSON.
//!
//! Descriptors travel with a message's first byte. A message is at most [`LIMIT`] bytes; a longer one, and
//! anything that is not JSON of the expected type, is an error that ends the conversation.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

const LIMIT: usize = 16 << 20;
const MOST_DESCRIPTORS: usize = 64;

/// One end of a conversation.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
}

impl Channel {
    pub fn new(socket: UnixStream) -> Self {
        Self { socket }
    }

    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = UnixStream::pair()?;
        Ok((Self::new(a), Self::new(b)))
    }

    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    pub fn send<T: Serialize>(&self, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        if body.len() > LIMIT {
            return Err(io::Error::other(format!("a message of {} bytes, the limit is {LIMIT}", body.len())));
        }
        let mut bytes = Vec::with_capacity(4 + body.len());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let control = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &control[..] };
        let sent = loop {
            let parts = [IoSlice::new(&bytes)];
            match sendmsg::<()>(self.socket.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None) {
                Err(nix::Error::EINTR) => continue,
                other => break other?,
            }
        };
        (&self.socket).write_all(&bytes[sent..])
    }

    /// The next message, or `None` where the other side has closed.
    pub fn recv<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut header = [0u8; 4];
        let (got, descriptors) = self.recv_first(&mut header)?;
        if got == 0 {
            return Ok(None);
        }
        (&self.socket).read_exact(&mut header[got..])?;
        let length = u32::from_le_bytes(header) as usize;
        if length > LIMIT {
            return Err(io::Error::other(format!("a message of {length} bytes, the limit is {LIMIT}")));
        }
        let mut body = vec![0; length];
        (&self.socket).read_exact(&mut body)?;
        Ok(Some((serde_json::from_slice(&body)?, descriptors)))
    }

    fn recv_first(&self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut control = nix::cmsg_space!([RawFd; MOST_DESCRIPTORS]);
        loop {
            let mut parts = [IoSliceMut::new(buffer)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let message = match recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut control), flags)
            {
                Err(nix::Error::EINTR) => continue,
                other => other?,
            };
            let mut descriptors = Vec::new();
            for part in message.cmsgs()? {
                if let ControlMessageOwned::ScmRights(raw) = part {
                    // SAFETY: the kernel has just installed these descriptors for this call; nothing else owns them.
                    descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
                }
            }
            return Ok((message.bytes, descriptors));
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_long_message_with_descriptors_arrives_whole() {
        let (a, b) = Channel::pair().unwrap();
        let text = "x".repeat(1 << 20);
        let expected = text.clone();
        let sender = std::thread::spawn(move || {
            let null = File::open("/dev/null").unwrap();
            a.send(&text, &[null.as_fd(), null.as_fd()]).unwrap();
        });
        let (found, descriptors) = b.recv::<String>().unwrap().unwrap();
        assert_eq!(found, expected);
        assert_eq!(descriptors.len(), 2);
        sender.join().unwrap();
        assert!(b.recv::<String>().unwrap().is_none(), "the sender has closed");
    }

    #[test]
    fn an_oversized_or_broken_message_is_an_error() {
        let (a, b) = UnixStream::pair().unwrap();
        (&a).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(Channel::new(b).recv::<String>().is_err());
        let (a, b) = UnixStream::pair().unwrap();
        (&a).write_all(&[3, 0, 0, 0, b'{', b'{', b'{']).unwrap();
        assert!(Channel::new(b).recv::<String>().is_err());
        let (a, b) = UnixStream::pair().unwrap();
        (&a).write_all(&[3, 0, 0, 0, b'"']).unwrap();
        drop(a);
        assert!(Channel::new(b).recv::<String>().is_err());
    }
}
