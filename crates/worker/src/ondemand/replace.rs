//! A worker in place of one that was killed while it loaded.
//!
//! The daemon has held the client's socket and the [journal](super::journal) all along. The image and the journal are all
//! that there was of the GPU half, for the program has been told nothing that depends on more.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rekindle_protocol::worker::Phase;
use rekindle_ring::Ring;

use super::OnDemandError;
use super::journal::Journal;
use super::replay::replay;
use crate::dispatch::{Dispatcher, Remote};
use crate::image::{self, RestoreOptions};

/// Begins to build the state of the image in the midst of its program's life. Requests wait for [`go_on`].
pub(crate) fn restore(
    dispatcher: &mut Dispatcher,
    image: &Path,
    directory: PathBuf,
    remote: &Remote,
) -> Result<Vec<Phase>, image::Error> {
    let options = RestoreOptions { directory, again: true, ..RestoreOptions::default() };
    let phases = image::restore(dispatcher, image, options, remote.clone())?;
    if let Some(board) = dispatcher.client.board {
        remote.use_board(board);
    }
    dispatcher.hold_requests();
    Ok(phases)
}

/// Does what the worker before has done, once all is loaded; requests go on when the client's socket is there too.
pub(crate) fn go_on(dispatcher: &mut Dispatcher, journal: OwnedFd, pid: i32) -> Result<(), OnDemandError> {
    let journal = Journal::inherit(journal).map_err(OnDemandError::Journal)?;
    if journal.is_settled() {
        return Err(OnDemandError::Settled);
    }
    dispatcher.client.pid = pid;
    dispatcher.client.output.of_pid(pid);
    take_up(dispatcher, journal)
}

/// Takes the rings where a worker before has left them, and does what it has done once more.
pub(super) fn take_up(dispatcher: &mut Dispatcher, mut journal: Journal) -> Result<(), OnDemandError> {
    take_rings(dispatcher, &mut journal)?;
    replay(dispatcher, journal)
}

/// Takes the rings where a worker before has left them.
pub(super) fn take_rings(dispatcher: &mut Dispatcher, journal: &mut Journal) -> Result<(), OnDemandError> {
    journal.cut();
    let rings: Vec<_> = journal.rings().chain(unread_rings(dispatcher)).collect();
    for (index, name) in rings {
        let path = dispatcher.client.run_file(&name).ok_or_else(|| OnDemandError::RingName(name.clone()))?;
        let ring = Ring::open(&path)?;
        dispatcher.add_ring(index, name, ring);
    }
    dispatcher.go_on_with(journal.next())?;
    if let Some(answered) = journal.answered()
        && let Some(thread) = dispatcher.client.threads.get(answered.ring)
        && thread.ring.header().reply.count() == answered.count
    {
        // It was written, and the worker ended before it was given.
        thread.ring.header().reply.raise();
    }
    Ok(())
}

/// Rings that the client has made and of which a worker may have heard without noting them.
fn unread_rings(dispatcher: &Dispatcher) -> Vec<(u32, String)> {
    let Some(process) = dispatcher.client.board_name.split('-').nth(1) else { return Vec::new() };
    let prefix = format!("ring-{process}-");
    let entries = std::fs::read_dir(&dispatcher.client.directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut rings: Vec<_> =
        names.filter_map(|name| Some((name.strip_prefix(&prefix)?.parse().ok()?, name))).collect();
    rings.sort();
    rings
}
