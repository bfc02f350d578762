//! What the worker's threads that talk to others hold while a message is half read, or read and not yet obeyed: a
//! worker that starts again passes both sockets on, and nothing may be lost between two processes.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

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
const PARTING_MS: i32 = 10_000;

/// Waits until there is something to read, the other end is closed, or there is something to read from this
/// sign.
pub(crate) fn wait_readable(socket: &UnixStream, sign: Option<BorrowedFd<'_>>) {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries = [entry(socket.as_raw_fd()), entry(sign.map_or(-1, |sign| sign.as_raw_fd()))];
    // SAFETY: two valid entries, borrowed for the call.
    unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) };
}

/// Waits until the client has gone, not for ever: the daemon, which knows by now that its program cannot go on, ends it
/// before it sees an error.
pub(crate) fn wait_for_parting(client: &UnixStream) {
    wait(client, libc::POLLRDHUP, PARTING_MS);
}

/// Whether the other end is closed, now or within the limit.
pub(crate) fn wait_for_close(socket: &UnixStream, limit: Duration) -> bool {
    wait(socket, libc::POLLRDHUP, limit.as_millis() as i32) != 0
}

fn wait(socket: &UnixStream, events: i16, limit_ms: i32) -> i16 {
    let mut entry = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    // SAFETY: one valid entry, borrowed for the call.
    unsafe { libc::poll(&mut entry, 1, limit_ms) };
    entry.revents
}
