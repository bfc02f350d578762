//! What the worker's threads that talk to others hold while a message is half read, or read and not yet obeyed: a
//! worker that starts again passes both sockets on, and nothing may be lost between two processes.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The connection of the daemon.
#[derive(Default)]
pub(crate) struct Daemon {
    /// None while there is no connection.
    pub stream: Option<RawFd>,
    /// The message that waits for the answer to `Loaded`.
    pub waits: Option<u64>,
}

#[derive(Default)]
pub(crate) struct Conversations {
    client: Mutex<()>,
    daemon: Mutex<Daemon>,
}

impl Conversations {
    /// To be held from before a message of the client is read until it is obeyed.
    pub(crate) fn client(&self) -> MutexGuard<'_, ()> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be held from before a request of the daemon is read until it is answered.
    pub(crate) fn daemon(&self) -> MutexGuard<'_, Daemon> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops both. `meanwhile` does what the threads wait for that are in a conversation.
    pub(super) fn stop(&self, mut meanwhile: impl FnMut()) -> (MutexGuard<'_, Daemon>, MutexGuard<'_, ()>) {
        let daemon = wait_for(&self.daemon, &mut meanwhile);
        (daemon, wait_for(&self.client, &mut meanwhile))
    }
}

fn wait_for<'m, T>(mutex: &'m Mutex<T>, meanwhile: &mut impl FnMut()) -> MutexGuard<'m, T> {
    loop {
        match mutex.try_lock() {
            Ok(held) => return held,
            Err(TryLockError::Poisoned(held)) => return held.into_inner(),
            Err(TryLockError::WouldBlock) => {
                meanwhile();
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

/// How long the daemon may take to end a program that cannot go on.
const PARTING: Duration = Duration::from_secs(10);

/// Waits until there is something to read, the other end is closed, or there is something to read from this
/// sign.
pub(crate) fn wait_readable(socket: &UnixStream, sign: Option<BorrowedFd<'_>>) {
    let readable = |end| PollFd::new(end, PollFlags::POLLIN);
    let mut ends: Vec<_> = [Some(socket.as_fd()), sign].into_iter().flatten().map(readable).collect();
    let _ = poll(&mut ends, PollTimeout::NONE);
}

/// Waits until the client has gone, not for ever: the daemon, which knows by now that its program cannot go on, ends it
/// before it sees an error.
pub(crate) fn wait_for_parting(client: &UnixStream) {
    wait_for_close(client, PARTING);
}

/// Whether the other end is closed, now or within the limit.
pub(crate) fn wait_for_close(socket: &UnixStream, limit: Duration) -> bool {
    let mut end = [PollFd::new(socket.as_fd(), PollFlags::from_bits_retain(libc::POLLRDHUP))];
    let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    poll(&mut end, limit).is_ok_and(|closed| closed > 0)
}
