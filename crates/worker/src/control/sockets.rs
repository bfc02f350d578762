//! Connections that are taken in, and what there is to read from them.

use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rekindle_protocol::frame::FrameError;
use rekindle_protocol::peer;
use rekindle_protocol::worker::{self as protocol, GreetingError};

/// How long who connects may take to greet.
pub(crate) const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// Takes a connection in and greets; none if it was nobody who may ask for anything.
pub(crate) fn accept(listener: &UnixListener) -> std::io::Result<Option<UnixStream>> {
    let (stream, _) = listener.accept()?;
    if !peer::is_beside(&stream) {
        log::warn!("a process of the sandbox is sent away that came where the daemon does");
        return Ok(None);
    }
    match protocol::greet(&stream, "worker", "daemon", GREETING_LIMIT) {
        Ok(()) => Ok(Some(stream)),
        // It only wanted to know whether anybody listens.
        Err(GreetingError::Frame(FrameError::Closed)) => Ok(None),
        Err(error) => {
            log::warn!("a daemon is sent away: {error}");
            Ok(None)
        }
    }
}

pub(crate) fn is_waiting(socket: &impl AsRawFd, limit: Duration) -> bool {
    poll(socket.as_raw_fd(), libc::POLLIN, limit.as_millis() as i32) != 0
}

/// The other end has been closed.
pub(crate) fn is_closed(socket: &UnixStream) -> bool {
    poll(socket.as_raw_fd(), libc::POLLRDHUP, 0) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// Which of these there is something to read from, or an end of, or a connection to take; none is waited for that is negative.
pub(super) fn readable(sockets: [i32; 2], limit: Option<Duration>) -> [bool; 2] {
    let mut entries = sockets.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let limit_ms = limit.map_or(-1, |limit| limit.as_millis() as i32);
    // SAFETY: two valid entries, borrowed for the call.
    unsafe { libc::poll(entries.as_mut_ptr(), 2, limit_ms) };
    entries.map(|entry| entry.revents != 0)
}

pub(super) fn poll(descriptor: i32, events: i16, limit_ms: i32) -> i16 {
    let mut entry = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: one valid entry, borrowed for the call.
    unsafe { libc::poll(&mut entry, 1, limit_ms) };
    entry.revents
}
