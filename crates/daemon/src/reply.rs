//! The daemon's side of one connection: what goes to the command line while a request is worked on.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rekindle_protocol::daemon::{Event, EventNotice, LogLine};
use rekindle_protocol::frame::{self, FrameError, Limits};
use serde::de::DeserializeOwned;

use crate::error::Error;

/// How long a message may take that has begun.
const HEAR_LIMIT: Duration = Duration::from_secs(10);
/// The shortest time between two notes of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

pub struct Reply<'a> {
    /// None where nobody waits for an answer.
    stream: Option<&'a UnixStream>,
    last: Mutex<Option<(String, Instant)>>,
}

impl<'a> Reply<'a> {
    pub fn new(stream: &'a UnixStream) -> Reply<'a> {
        Reply { stream: Some(stream), last: Mutex::new(None) }
    }

    /// For work that the daemon does by itself.
    pub fn to_nobody() -> Reply<'static> {
        Reply { stream: None, last: Mutex::new(None) }
    }

    /// An error if the user does not want any more what was asked for: the command has said so, or is gone.
    pub fn check_wanted(&self) -> Result<(), Error> {
        let Some(stream) = self.stream else { return Ok(()) };
        let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(ready) if ready > 0 => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }

    /// Tells how far the work is. A user who is gone does not stop it, unless it [looks](Reply::check_wanted).
    pub fn progress(&self, phase: &str, done: u64, total: u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let soon = last
            .as_ref()
            .is_some_and(|(before, when)| before == phase && when.elapsed() < PROGRESS_EVERY && done < total);
        if !soon {
            *last = Some((phase.to_string(), Instant::now()));
            let _ = self.send(&Event::Progress { phase: phase.to_string(), done, total });
        }
    }

    pub fn output(&self, bytes: Vec<u8>) -> Result<(), FrameError> {
        self.send(&Event::Output { bytes })
    }

    pub fn lines(&self, lines: Vec<LogLine>) -> Result<(), FrameError> {
        if lines.is_empty() { Ok(()) } else { self.send(&Event::Lines { lines }) }
    }

    pub fn happened(&self, what: EventNotice) -> Result<(), FrameError> {
        self.send(&Event::Happened { what })
    }

    pub fn send(&self, event: &Event) -> Result<(), FrameError> {
        self.stream.map_or(Ok(()), |stream| frame::send(stream, event, &[]))
    }

    /// Can be read when the user says more, or has gone; none where there is no user.
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.stream.map(AsFd::as_fd)
    }

    /// What the user says beside the request.
    pub fn hear<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        let limits = Limits { descriptors: 0, time: Some(HEAR_LIMIT), ..Limits::default() };
        let stream = self.stream.ok_or(FrameError::Closed)?;
        Ok(frame::receive_within(stream, &limits)?.0)
    }

    /// The process that asks; none in another pid namespace.
    pub fn asker(&self) -> Option<i32> {
        let peer = getsockopt(self.stream?, PeerCredentials).ok()?;
        Some(peer.pid()).filter(|pid| *pid > 0)
    }

    /// Whether the user has closed the connection.
    pub fn is_gone(&self) -> bool {
        let Some(stream) = self.stream else { return false };
        let mut polled = [PollFd::new(stream.as_fd(), PollFlags::empty())];
        matches!(poll(&mut polled, PollTimeout::ZERO), Ok(ready) if ready > 0)
    }
}
