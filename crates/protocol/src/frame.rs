//! Frames on a Unix socket: a length (u32, little endian), JSON, and file descriptors that travel along.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::{Serialize, de::DeserializeOwned};

/// The longest frame that is accepted, bytes.
pub const MAX_FRAME: usize = 64 << 20;
/// How many descriptors go with one message; Linux takes 253.
pub const MOST_DESCRIPTORS: usize = 128;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the other side closed the connection")]
    Closed,
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("a message of {0} bytes is over the limit of {MAX_FRAME}")]
    TooLong(usize),
    #[error("a message could not be understood: {0}; are both sides of the same version?")]
    Malformed(#[from] serde_json::Error),
}

/// Sends one message with descriptors (at most [`MOST_DESCRIPTORS`]), whole.
pub fn send(
    stream: &UnixStream,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), FrameError> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MAX_FRAME {
        return Err(FrameError::TooLong(body.len()));
    }
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    let raw: Vec<i32> = descriptors.iter().map(|d| d.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let sent = loop {
        match sendmsg::<()>(
            stream.as_raw_fd(),
            &[IoSlice::new(&frame)],
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        ) {
            Err(nix::errno::Errno::EINTR) => {}
            other => break other.map_err(closed)?,
        }
    };
    (&mut &*stream).write_all(&frame[sent..])?;
    Ok(())
}

/// Receives one message and the descriptors that came with it. Blocks as the socket's time-outs say.
pub fn receive<T: DeserializeOwned>(stream: &UnixStream) -> Result<(T, Vec<OwnedFd>), FrameError> {
    let mut length = [0u8; 4];
    let mut descriptors = Vec::new();
    let mut control = nix::cmsg_space!([i32; MOST_DESCRIPTORS]);
    let got = loop {
        let mut slices = [IoSliceMut::new(&mut length)];
        match recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(closed(errno)),
            Ok(message) => {
                for part in message.cmsgs().map_err(closed)? {
                    if let ControlMessageOwned::ScmRights(fds) = part {
                        // SAFETY: the kernel has just made these descriptors for us; nobody else knows them.
                        descriptors.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
                    }
                }
                break message.bytes;
            }
        }
    };
    if got == 0 {
        return Err(FrameError::Closed);
    }
    read_exact(stream, &mut length[got..])?;
    let bytes = u32::from_le_bytes(length) as usize;
    if bytes > MAX_FRAME {
        return Err(FrameError::TooLong(bytes));
    }
    let mut body = vec![0; bytes];
    read_exact(stream, &mut body)?;
    Ok((serde_json::from_slice(&body)?, descriptors))
}

fn read_exact(stream: &UnixStream, into: &mut [u8]) -> Result<(), FrameError> {
    match (&mut &*stream).read_exact(into) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(FrameError::Closed),
        other => Ok(other?),
    }
}

fn closed(errno: nix::errno::Errno) -> FrameError {
    match errno {
        nix::errno::Errno::EPIPE | nix::errno::Errno::ECONNRESET => FrameError::Closed,
        other => FrameError::Io(other.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn messages_and_descriptors_arrive() {
        let (left, right) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        send(&left, &vec![1, 2, 3], &[file.as_fd(), file.as_fd()]).unwrap();
        send(&left, &"x".repeat(100_000), &[]).unwrap();
        let (numbers, descriptors): (Vec<i32>, _) = receive(&right).unwrap();
        assert_eq!((numbers, descriptors.len()), (vec![1, 2, 3], 2));
        let (text, _): (String, _) = receive(&right).unwrap();
        assert_eq!(text.len(), 100_000);
        drop(left);
        assert!(matches!(receive::<String>(&right), Err(FrameError::Closed)));
    }

    #[test]
    fn nonsense_is_refused() {
        let (left, right) = UnixStream::pair().unwrap();
        (&left).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(matches!(receive::<String>(&right), Err(FrameError::TooLong(_))));
        let (left, right) = UnixStream::pair().unwrap();
        (&left).write_all(&[2, 0, 0, 0, b'{', b'{']).unwrap();
        assert!(matches!(receive::<String>(&right), Err(FrameError::Malformed(_))));
    }
}
