//! How much streams have to do.
//!
//! A driver takes about a thousand pieces of work for a stream. Who gives it more waits in the call; here that would be the thread
//! that does the requests of all of the program's threads, also of one that is to release the stream. So the program's own thread
//! waits, as it would natively:
//!
//! ```text
//!  stream    ══ 128 ═╪═ 128 ═╪═ 128 ═╪═ 128 ═╪═ 128 ═╪    five marks are not reached: the board calls it full
//!  thread    ── launch ─ launch ─ full? ┄ StreamRoom ┄┄┄┄ three are left ─ launch ─▶
//! ```
//!
//! With what a thread's ring holds by the time that it is told, that is less than what the driver takes.

use std::collections::{HashMap, VecDeque};

use rekindle_device::{Event, Stream};
use rekindle_protocol::operation::{Answer, Id, Origin};

use super::Client;

/// Pieces of work between two marks.
const BATCH: u32 = 128;
/// Marks of a full stream that are not reached, and of one that has room again.
const FULL: usize = 5;
const ROOM: usize = 3;

/// By device and stream, what has come to a mark.
#[derive(Default)]
pub(crate) struct Backlogs(HashMap<(usize, u64), Backlog>);

struct Backlog {
    id: Id,
    /// Those that were not reached when it was last looked.
    marks: VecDeque<Event>,
    is_full: bool,
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
    pub(super) fn mark_backlog(&mut self, device: usize, stream: Stream, id: Id) {
        if !self.recordings.is_empty() {
            return;
        }
        let Ok(mark) = self.record(device, stream) else { return };
        let backlog = Backlog { id, marks: VecDeque::new(), is_full: false };
        self.backlogs.0.entry((device, stream.0)).or_insert(backlog).marks.push_back(mark);
        self.look_at_backlog(device, stream, FULL - 1);
    }

    /// Whether at most so many marks of a stream are not reached; it is not full then, and else it is.
    fn look_at_backlog(&mut self, device: usize, stream: Stream, most: usize) -> bool {
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
        let is_full = backlog.marks.len() > most;
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

    /// Whether a full stream has room again.
    pub(super) fn has_room(&mut self, device: usize, stream: Stream) -> bool {
        let is_full = |backlog: &Backlog| backlog.is_full;
        let was_full = self.backlogs.0.get(&(device, stream.0)).is_some_and(is_full);
        !was_full || self.look_at_backlog(device, stream, ROOM)
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
