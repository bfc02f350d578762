//! How much streams have to do.
//!
//! A driver takes about a thousand pieces of work for a stream. Who gives it more waits in the call; here that would be the thread
//! that does the requests of all of the program's threads, also of one that is to release the stream. So the program's own thread
//! waits, as it would natively:
//!
//! ```text
//!  stream    ══ 64 ══╪══ 64 ══╪══ 64 ══╪ ... ╪══ 64 ══╪    14 marks are not reached: the board calls it full
//!  thread    ── launch ─ launch ─ full? ┄ StreamRoom ┄┄┄ 12 are left ─ launch ─▶
//! ```
//!
//! With what the rings hold by the time that their threads are told, that is just less than what the driver takes: what is enqueued
//! is what the GPU does while a program stands still.

use std::collections::{HashMap, HashSet, VecDeque};

use rekindle_device::{Event, Stream};
use rekindle_protocol::operation::{Answer, Id, Origin};

use super::Client;

/// Pieces of work between two marks.
const BATCH: u32 = 64;
/// What a driver takes (an H200's, 580), and what a ring may hold of launches.
const TAKEN: usize = 1020;
const IN_A_RING: usize = 120;
/// Marks that a full stream has reached when it has room again.
const REACHED: usize = 2;

/// By device and stream, what has come to a mark.
#[derive(Default)]
pub(crate) struct Backlogs(HashMap<(usize, u64), Backlog>);

struct Backlog {
    id: Id,
    /// Those that were not reached when it was last looked.
    marks: VecDeque<Event>,
    /// Whose work was marked, since there were none.
    rings: HashSet<usize>,
    is_full: bool,
}

impl Backlog {
    /// How many marks it may have that are not reached.
    fn most(&self) -> usize {
        let full = TAKEN.saturating_sub(IN_A_RING * self.rings.len()) / BATCH as usize;
        full.saturating_sub(if self.is_full { REACHED } else { 1 })
    }
}

/// Whether a stream gets a mark with this piece of work.
#[inline]
pub(super) fn is_marked(issued: &mut u32) -> bool {
    *issued = issued.wrapping_add(1);
    issued.is_multiple_of(BATCH)
}

impl Client {
    /// Puts a mark into a stream. One that cannot be made is done without, and so are those of captures, which give nobody work.
    #[cold]
    pub(super) fn mark_backlog(&mut self, origin: Origin, device: usize, stream: Stream, id: Id) {
        if !self.recordings.is_empty() {
            return;
        }
        let Ok(mark) = self.record(device, stream) else { return };
        let new = || Backlog { id, marks: VecDeque::new(), rings: HashSet::new(), is_full: false };
        let backlog = self.backlogs.0.entry((device, stream.0)).or_insert_with(new);
        backlog.marks.push_back(mark);
        backlog.rings.insert(origin.ring);
        self.has_room(device, stream);
    }

    /// Whether a stream takes more work, as far as its marks tell.
    pub(super) fn has_room(&mut self, device: usize, stream: Stream) -> bool {
        let Client { backlogs, contexts, .. } = self;
        let Some(backlog) = backlogs.0.get_mut(&(device, stream.0)) else { return true };
        let mut reached = Vec::new();
        if let Some(context) = contexts.get(device).and_then(Option::as_ref) {
            // Of a GPU that has failed all are: whoever waits is to hear of that.
            let is_reached = |mark: &mut Event| context.device.event_query(*mark).unwrap_or(true);
            while let Some(mark) = backlog.marks.pop_front_if(is_reached) {
                reached.push(mark);
            }
        }
        if backlog.marks.is_empty() {
            backlog.rings.clear();
        }
        let is_full = backlog.marks.len() > backlog.most();
        let changes = std::mem::replace(&mut backlog.is_full, is_full) != is_full;
        reached.into_iter().for_each(|mark| self.give_event(device, mark));
        if changes {
            self.tell_backlogs();
        }
        !is_full
    }

    fn tell_backlogs(&self) {
        if let Some(board) = self.board {
            board.set_full(
                self.backlogs.0.values().filter(|backlog| backlog.is_full).map(|backlog| backlog.id),
            );
        }
    }

    pub(super) fn await_room(&mut self, origin: Origin, device: u8, id: Id) -> Answer<bool> {
        match self.stream(origin, device, id) {
            Err(code) => Answer::Now(Err(code)),
            Ok((device, stream)) if self.has_room(device, stream) => Answer::Now(Ok(true)),
            Ok((device, stream)) => self.when_room(origin, device, stream),
        }
    }

    /// The stream is gone.
    pub(super) fn forget_backlog(&mut self, device: usize, stream: Stream) {
        let Some(backlog) = self.backlogs.0.remove(&(device, stream.0)) else { return };
        backlog.marks.into_iter().for_each(|mark| self.give_event(device, mark));
        if backlog.is_full {
            self.tell_backlogs();
        }
    }

    /// So are all of a device.
    pub(super) fn forget_backlogs(&mut self, device: usize) {
        let keys: Vec<_> = self.backlogs.0.keys().filter(|(of, _)| *of == device).copied().collect();
        keys.into_iter().for_each(|(device, stream)| self.forget_backlog(device, Stream(stream)));
    }
}
