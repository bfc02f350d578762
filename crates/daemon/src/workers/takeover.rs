//! What is held for a worker that may be lost: its client's socket, and all that another one would go on from.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rekindle_protocol::frame;
use rekindle_protocol::mending::{LEDGER, Ledger, MendMode, MendStatus, RetainedItem};
use rekindle_protocol::worker::{Phase, ask};

use super::Worker;
use crate::error::{Error, Result};
use crate::workers::WorkerError;

/// How long a worker that has ended may have left something to read.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// The worker's end of its client's socket.
const CLIENT: &str = "client";

#[derive(Default)]
pub struct TakeoverState {
    all: Mutex<All>,
    closed: Condvar,
}

#[derive(Default)]
struct All {
    things: HashMap<String, (RetainedItem, OwnedFd)>,
    ledger: Option<Ledger>,
    /// The worker says nothing more.
    is_closed: bool,
}

impl TakeoverState {
    /// Holds what is said at this socket, until it is closed.
    fn listen(self: &Arc<TakeoverState>, socket: UnixStream) {
        let held = self.clone();
        std::thread::spawn(move || {
            while let Ok((kept, descriptors)) = frame::receive::<RetainedItem>(&socket) {
                held.take(kept, descriptors);
            }
            held.lock().is_closed = true;
            held.closed.notify_all();
        });
    }

    fn take(&self, kept: RetainedItem, descriptors: Vec<OwnedFd>) {
        let mut all = self.lock();
        let Some(descriptor) = descriptors.into_iter().next() else {
            // It counts no more.
            all.things.remove(&kept.name);
            return;
        };
        if kept.name == LEDGER {
            let opened = descriptor.try_clone().and_then(|copy| Ledger::open(File::from(copy)));
            match opened {
                Ok(ledger) => all.ledger = Some(ledger),
                Err(error) => log::warn!("what a worker says of its loss cannot be read: {error}"),
            }
        }
        all.things.insert(kept.name.clone(), (kept, descriptor));
    }

    /// How it stands; none before the worker has said what is to be held.
    pub fn standing(&self) -> Option<MendStatus> {
        self.lock().ledger.as_ref().map(Ledger::standing)
    }

    /// Whether the process has closed its end of the client's socket.
    pub fn has_lost_client(&self) -> bool {
        let all = self.lock();
        let Some((_, client)) = all.things.get(CLIENT) else { return false };
        let mut entries = [PollFd::new(client.as_fd(), PollFlags::empty())];
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
        poll(&mut entries, PollTimeout::ZERO).is_ok()
            && entries[0].revents().is_some_and(|found| found.intersects(gone))
    }

    /// Has another worker take the place of the one that all this is of, which has ended.
    pub fn take_up(
        &self,
        worker: &Worker,
        run_directory: &Path,
        pid: i32,
        how: MendMode,
        (store, name): (String, String),
    ) -> Result<Vec<Phase>> {
        let action = "take the place of a lost worker";
        let waits = |all: &mut All| !all.is_closed;
        let all = self.closed.wait_timeout_while(self.lock(), LAST_WORDS, waits);
        let all = all.unwrap_or_else(PoisonError::into_inner).0;
        let client = all.things.get(CLIENT).map(|(_, client)| client);
        let client = client
            .ok_or_else(|| WorkerError::Failed { action, reason: "its client was not held".to_string() })?;
        let others: Vec<_> = all.things.values().filter(|(kept, _)| kept.name != CLIENT).collect();
        let descriptors: Vec<_> =
            std::iter::once(client).chain(others.iter().map(|(_, fd)| fd)).map(AsFd::as_fd).collect();
        let kept = others.iter().map(|(kept, _)| kept.clone()).collect();
        let run_directory = run_directory.to_string_lossy().into_owned();
        worker.ask(action, ask::TakeUp { run_directory, pid, store, name, how, kept }, &descriptors)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// Has it keep what another worker would go on from, and holds that, if that is not so already.
    pub fn keep_mendable(&self, (store, name): (String, String)) -> Result<()> {
        let held = Arc::new(TakeoverState::default());
        {
            let mut slot = super::lock(&self.held);
            if slot.is_some() || self.ended().is_some() {
                return Ok(());
            }
            *slot = Some(held.clone());
        }
        let asked = (|| {
            let (ours, theirs) =
                UnixStream::pair().map_err(|source| Error::system("make a pair of sockets", source))?;
            let action = "keep what its loss would be mended with";
            self.ask(action, ask::Mend { store, name }, &[theirs.as_fd()])?;
            held.listen(ours);
            Ok(())
        })();
        if asked.is_err() {
            *super::lock(&self.held) = None;
        }
        asked
    }

    /// What is held for its loss.
    pub fn held(&self) -> Option<Arc<TakeoverState>> {
        super::lock(&self.held).clone()
    }

    /// Nothing of it is held any more: its client sees its end.
    pub fn let_go_of_held(&self) {
        *super::lock(&self.held) = None;
    }
}
