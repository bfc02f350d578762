//! Messages with file descriptors between the daemon and what it has running for it: the [frames](rekindle_protocol::frame)
//! of everything here.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rekindle_protocol::frame::{self, FrameError};
use serde::Serialize;
use serde::de::DeserializeOwned;

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
        frame::send(&self.socket, message, descriptors).map_err(failed)
    }

    /// The next message, or `None` where the other side has closed.
    pub fn recv<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        match frame::receive(&self.socket) {
            Err(FrameError::Closed) => Ok(None),
            other => other.map(Some).map_err(failed),
        }
    }
}

fn failed(error: FrameError) -> io::Error {
    match error {
        FrameError::Io(error) => error,
        FrameError::Closed => io::Error::new(io::ErrorKind::BrokenPipe, error),
        other => io::Error::other(other),
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
    use std::io::Write;

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
        assert!(Channel::new(b).recv::<String>().unwrap().is_none(), "half a message is none");
    }
}
