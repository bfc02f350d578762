//! Where a worker goes when its program has ended, if its context is to serve another one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{dup2_stderr, dup2_stdout};
use rekindle_protocol::worker::Departure;

use crate::start::listen;

/// What the daemon has said of that; nothing at first.
#[derive(Default)]
pub(crate) struct Succession(Mutex<State>);

#[derive(Default)]
struct State {
    next: Option<NextPlace>,
    has_gone: bool,
    has_keeper: bool,
}

/// A place among the workers that wait.
pub(crate) struct NextPlace {
    pub socket: PathBuf,
    pub log: PathBuf,
    /// The daemon waits for word from there.
    pub word: File,
}

impl Succession {
    pub(crate) fn ask_for(&self, next: NextPlace) {
        self.state().next = Some(next);
    }

    /// The place, if a daemon has asked for that which is there yet.
    pub(crate) fn take(&self) -> Option<NextPlace> {
        self.state().next.take().filter(NextPlace::is_waited_for)
    }

    /// Whether a daemon waits for it. The next one, if that is dead, knows the worker by its pid alone.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.state().next.as_ref().is_some_and(NextPlace::is_waited_for)
    }

    /// Nobody at the former place is answered any more, by this process.
    pub(crate) fn note_gone(&self) {
        self.state().has_gone = true;
    }

    pub(crate) fn has_gone(&self) -> bool {
        self.state().has_gone
    }

    /// A keeper with this pid listens at the former place, and the daemon is to know of it before this process can end.
    pub(crate) fn note_keeper(&self, pid: i32) {
        let mut state = self.state();
        (state.has_gone, state.has_keeper) = (true, true);
        if let Some(Err(error)) = state.next.as_mut().map(|next| Departure::Kept(pid).send(&next.word)) {
            log::debug!("nobody waits for this worker to come back: {error}");
        }
    }

    pub(crate) fn has_keeper(&self) -> bool {
        self.state().has_keeper
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NextPlace {
    /// Whether anybody has the other end of the pipe.
    fn is_waited_for(&self) -> bool {
        let mut entry = [PollFd::new(self.word.as_fd(), PollFlags::empty())];
        let _ = poll(&mut entry, PollTimeout::ZERO);
        entry[0].revents().is_none_or(|found| !found.contains(PollFlags::POLLERR))
    }

    /// Listens there and logs there from now on, and says so; the daemon that asked for it is there yet.
    pub(crate) fn enter(self) -> io::Result<UnixListener> {
        let log = OpenOptions::new().append(true).create(true).open(&self.log)?;
        dup2_stderr(&log)?;
        dup2_stdout(File::options().write(true).open("/dev/null")?)?;
        let listener = listen(&self.socket)?;
        Departure::Returned.send(&self.word)?;
        Ok(listener)
    }
}
