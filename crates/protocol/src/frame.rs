//! Frames: a length (u32, little endian), and JSON. On a Unix socket file descriptors travel along.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::{Serialize, de::DeserializeOwned};

/// The longest frame that is accepted, bytes.
pub const MAX_FRAME: usize = 64 << 20;
/// How many descriptors go with one message; Linux takes 253.
pub const MOST_DESCRIPTORS: usize = 128;
/// How many the kernel lets one message have.
const KERNELS_MOST: usize = 253;
/// How long the kernel may take to have room for a message's descriptors: it has so many of a user's under way at most, of all
/// of the user's processes together, as the sender may have files open.
const ROOM_LIMIT: Duration = Duration::from_secs(10);
const ROOM_PAUSE: Duration = Duration::from_millis(1);
/// So much room is made for bytes before any of them has come.
const PIECE: usize = 1 << 16;

/// What is taken of somebody who may send anything.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: usize,
    pub descriptors: usize,
    /// For the whole message. Without it, each read takes as long as the socket's own limit says.
    pub time: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bytes: MAX_FRAME, descriptors: MOST_DESCRIPTORS, time: None }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the other side closed the connection")]
    Closed,
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("a message of {0} bytes is over the limit")]
    TooLong(usize),
    #[error("{found} descriptors came with a message, and at most {most} belong there")]
    TooManyDescriptors { found: usize, most: usize },
    #[error("descriptors of a message were lost, as too many files are open")]
    DescriptorsLost,
    #[error("message {found} was answered where {expected} was asked")]
    OutOfOrder { expected: u64, found: u64 },
    #[error("a message could not be understood: {0}; are both sides of the same version?")]
    Malformed(#[from] serde_json::Error),
}

/// A message as it is sent, unless it is longer than `most`.
pub fn encode(message: &impl Serialize, most: usize) -> Result<Vec<u8>, FrameError> {
    let body = serde_json::to_vec(message)?;
    if body.len() > most {
        return Err(FrameError::TooLong(body.len()));
    }
    Ok([&(body.len() as u32).to_le_bytes(), &body[..]].concat())
}

/// The next message; none where what it is read from ends before it.
pub fn read<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> Result<Option<T>, FrameError> {
    let mut length = Vec::new();
    from.take(4).read_to_end(&mut length)?;
    match <[u8; 4]>::try_from(length) {
        Ok(length) => read_body(from, length, most).map(Some),
        Err(cut) if cut.is_empty() => Ok(None),
        Err(_) => Err(FrameError::Closed),
    }
}

fn read_body<T: DeserializeOwned>(
    from: &mut impl Read,
    length: [u8; 4],
    most: usize,
) -> Result<T, FrameError> {
    let bytes = u32::from_le_bytes(length) as usize;
    if bytes > most {
        return Err(FrameError::TooLong(bytes));
    }
    Ok(serde_json::from_slice(&read_bytes(from, bytes)?)?)
}

/// So many bytes. Room is made as they come, not as somebody says that they will.
pub fn read_bytes(from: &mut impl Read, count: usize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = Vec::with_capacity(count.min(PIECE));
    from.take(count as u64).read_to_end(&mut bytes)?;
    if bytes.len() == count { Ok(bytes) } else { Err(FrameError::Closed) }
}

/// Sends one message with descriptors (at most [`MOST_DESCRIPTORS`]), whole.
pub fn send(
    stream: &UnixStream,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), FrameError> {
    let frame = encode(message, MAX_FRAME)?;
    let raw: Vec<i32> = descriptors.iter().map(|d| d.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let began = Instant::now();
    let sent = loop {
        match sendmsg::<()>(
            stream.as_raw_fd(),
            &[IoSlice::new(&frame)],
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        ) {
            Err(Errno::EINTR) => {}
            Err(Errno::ETOOMANYREFS) if began.elapsed() < ROOM_LIMIT => std::thread::sleep(ROOM_PAUSE),
            other => break other.map_err(closed)?,
        }
    };
    (&mut &*stream).write_all(&frame[sent..])?;
    Ok(())
}

/// Receives one message and the descriptors that came with it. Blocks as the socket's time-outs say.
pub fn receive<T: DeserializeOwned>(stream: &UnixStream) -> Result<(T, Vec<OwnedFd>), FrameError> {
    receive_within(stream, &Limits::default())
}

/// As [`receive`], of somebody who may send anything. What is over a limit is not kept: descriptors that came are closed.
pub fn receive_within<T: DeserializeOwned>(
    stream: &UnixStream,
    limits: &Limits,
) -> Result<(T, Vec<OwnedFd>), FrameError> {
    let mut rest = Rest { stream, until: limits.time.map(|time| Instant::now() + time) };
    let mut length = [0u8; 4];
    rest.wait_at_most()?;
    let (got, descriptors) = receive_first(stream, &mut length)?;
    if got == 0 {
        return Err(FrameError::Closed);
    }
    if descriptors.len() > limits.descriptors {
        let (found, most) = (descriptors.len(), limits.descriptors);
        return Err(FrameError::TooManyDescriptors { found, most });
    }
    let cut = length.len() - got;
    length[got..].copy_from_slice(&read_bytes(&mut rest, cut)?);
    Ok((read_body(&mut rest, length, limits.bytes)?, descriptors))
}

/// The first bytes of a message. All descriptors that come with them are owned from here on, whatever else goes wrong.
fn receive_first(stream: &UnixStream, into: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), FrameError> {
    // Words, so that it is aligned as the kernel's headers are.
    // SAFETY: computes a size.
    const SPACE: usize = unsafe { libc::CMSG_SPACE((KERNELS_MOST * size_of::<i32>()) as u32) } as usize;
    let mut control = [0u64; SPACE.div_ceil(size_of::<u64>())];
    let mut slice = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut slice;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let got = loop {
        // SAFETY: the message names two buffers of ours with their sizes, both borrowed for the call.
        let got = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
        match Errno::result(got) {
            Err(Errno::EINTR) => {}
            other => break other.map_err(closed)? as usize,
        }
    };
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the message in; the macros stay inside of what it says is there.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(&message) };
    while !part.is_null() {
        // SAFETY: as above; the header is whole, and the data that follows it has as many bytes as it says. The
        // descriptors were made by the kernel for this call, and nobody else knows them.
        unsafe {
            if ((*part).cmsg_level, (*part).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*part).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(part).cast::<i32>();
                let own = |n| OwnedFd::from_raw_fd(first.add(n).read_unaligned());
                descriptors.extend((0..bytes / size_of::<i32>()).map(own));
            }
            part = libc::CMSG_NXTHDR(&message, part);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(FrameError::DescriptorsLost);
    }
    Ok((got, descriptors))
}

/// A message behind its first bytes. Descriptors that come with that are nobody's: the kernel closes them.
struct Rest<'a> {
    stream: &'a UnixStream,
    until: Option<Instant>,
}

impl Rest<'_> {
    /// The next read ends in time.
    fn wait_at_most(&self) -> io::Result<()> {
        let Some(until) = self.until else { return Ok(()) };
        match until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            Some(left) => self.stream.set_read_timeout(Some(left)),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Read for Rest<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.wait_at_most()?;
        self.stream.read(into)
    }
}

fn closed(errno: Errno) -> FrameError {
    match errno {
        Errno::EPIPE | Errno::ECONNRESET => FrameError::Closed,
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

    #[test]
    fn a_message_waits_for_others_descriptors_to_arrive() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        // A user of nobody else's, in this thread alone.
        const USER: u32 = 4_123_456;
        const MOST: u64 = 1000;
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, MOST.min(hard), hard).unwrap();
        std::thread::spawn(|| {
            // SAFETY: takes three integers, and changes this thread.
            unsafe { libc::syscall(libc::SYS_setresuid, USER, USER, USER) };
            let (left, right) = UnixStream::pair().unwrap();
            let file = std::fs::File::open("/dev/null").unwrap();
            let descriptors = [file.as_fd(); MOST_DESCRIPTORS];
            let count = MOST as usize / MOST_DESCRIPTORS + 3;
            let began = Instant::now();
            let receiver = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                (0..count).map(|_| receive::<usize>(&right).unwrap().1.len()).sum::<usize>()
            });
            (0..count).for_each(|number| send(&left, &number, &descriptors).unwrap());
            assert!(began.elapsed() >= Duration::from_millis(200), "there was room for all at once");
            assert_eq!(receiver.join().unwrap(), count * MOST_DESCRIPTORS);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn messages_in_a_file_end_where_it_does() {
        let text = [encode(&"one", 9).unwrap(), encode(&vec![2], 9).unwrap()].concat();
        let mut from = &text[..];
        assert_eq!(read::<String>(&mut from, 9).unwrap().unwrap(), "one");
        assert_eq!(read::<Vec<i32>>(&mut from, 9).unwrap().unwrap(), [2]);
        assert!(read::<String>(&mut from, 9).unwrap().is_none());
        for cut in 1..9 {
            assert!(matches!(read::<String>(&mut &text[..cut], 9), Err(FrameError::Closed)), "{cut}");
        }
        assert!(matches!(read::<String>(&mut &text[..], 4), Err(FrameError::TooLong(5))));
        assert!(matches!(encode(&"one", 4), Err(FrameError::TooLong(5))));
    }

    /// The descriptors of a file that this process has open.
    fn open_descriptors(of: &std::path::Path) -> usize {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        targets.filter(|target| target == of).count()
    }

    #[test]
    fn descriptors_that_do_not_belong_there_are_closed() {
        // Tests beside this one open files of their own.
        let file = tempfile::NamedTempFile::new().unwrap();
        let (path, file) = (file.path().canonicalize().unwrap(), file.as_file());
        let before = open_descriptors(&path);
        let limits = Limits { bytes: 100, descriptors: 1, time: None };
        for count in [2, MOST_DESCRIPTORS + 1, KERNELS_MOST] {
            let (left, right) = UnixStream::pair().unwrap();
            send(&left, &"x", &vec![file.as_fd(); count]).unwrap();
            let refused = receive_within::<String>(&right, &limits);
            assert!(matches!(refused, Err(FrameError::TooManyDescriptors { .. })), "{refused:?}");
            assert_eq!(open_descriptors(&path), before);
            let (left, right) = UnixStream::pair().unwrap();
            send(&left, &"x".repeat(200), &vec![file.as_fd(); count]).unwrap();
            assert!(receive::<Vec<u8>>(&right).is_err());
            // In the middle of a message.
            let (left, right) = UnixStream::pair().unwrap();
            (&left).write_all(&9u32.to_le_bytes()).unwrap();
            send(&left, &"xyz", &vec![file.as_fd(); count]).unwrap();
            let _ = receive_within::<String>(&right, &limits);
            assert_eq!(open_descriptors(&path), before);
        }
    }

    #[test]
    fn who_sends_slowly_is_not_waited_for() {
        let (left, right) = UnixStream::pair().unwrap();
        let sender = std::thread::spawn(move || {
            for byte in (MAX_FRAME as u32).to_le_bytes().into_iter().chain(std::iter::repeat(b'"')) {
                if (&left).write_all(&[byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let limits = Limits { time: Some(Duration::from_millis(100)), ..Limits::default() };
        assert!(matches!(receive_within::<String>(&right, &limits), Err(FrameError::Io(_))));
        drop(right);
        sender.join().unwrap();
    }
}
