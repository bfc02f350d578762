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
//! That is just less than what the driver takes: what is enqueued is what the GPU does while a program stands still. The program
//! learns of it late by what its rings hold, so while a stream is *deep* its threads do not run far ahead of this one.

use std::collections::{HashMap, HashSet, VecDeque};

use rekindle_device::{Event, Stream};
use rekindle_protocol::operation::{Answer, Id, Origin};
use rekindle_ring::Board;

use super::Client;

/// Pieces of work between two marks.
const BATCH: u32 = 64;
/// What a driver takes (an H200's, 580), less the marks; and what a ring may hold while a stream is deep.
const TAKEN: usize = 1020 - 16;
const IN_A_RING: usize = 65;
/// Marks that a deep stream has not reached. With all that the rings of two threads hold of the shortest launches, that is what a
/// driver takes.
const DEEP: usize = 4;
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
    depth: Depth,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Shallow,
    Deep,
    Full,
}

impl Backlog {
    fn new(id: Id) -> Backlog {
        Backlog { id, marks: VecDeque::new(), rings: HashSet::new(), depth: Depth::Shallow }
    }

    fn look(&mut self) {
        if self.marks.is_empty() {
            self.rings.clear();
        }
        let full = TAKEN.saturating_sub(IN_A_RING * self.rings.len()) / BATCH as usize;
        let full = full.max(DEEP) - if self.depth == Depth::Full { REACHED - 1 } else { 0 };
        self.depth = match self.marks.len() {
            marks if marks >= full => Depth::Full,
            marks if marks >= DEEP => Depth::Deep,
            _ => Depth::Shallow,
        };
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
        let backlog = self.backlogs.0.entry((device, stream.0)).or_insert_with(|| Backlog::new(id));
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
        let was = backlog.depth;
        backlog.look();
        let depth = backlog.depth;
        reached.into_iter().for_each(|mark| self.give_event(device, mark));
        if depth != was {
            self.tell_depths();
        }
        depth < Depth::Full
    }

    /// The program's board is this. What a worker before this one has said there of streams holds no more.
    pub(crate) fn take_board(&mut self, board: &'static Board) {
        self.board = Some(board);
        self.tell_depths();
    }

    fn tell_depths(&self) {
        let Some(board) = self.board else { return };
        let deep = self.backlogs.0.values().filter(|backlog| backlog.depth >= Depth::Deep);
        board.set_deep(deep.map(|backlog| (backlog.id, backlog.depth == Depth::Full)));
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
        if backlog.depth >= Depth::Deep {
            self.tell_depths();
        }
    }

    /// So are all of a device.
    pub(super) fn forget_backlogs(&mut self, device: usize) {
        let keys: Vec<_> = self.backlogs.0.keys().filter(|(of, _)| *of == device).copied().collect();
        keys.into_iter().for_each(|(device, stream)| self.forget_backlog(device, Stream(stream)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_takes_less_the_more_threads_use_it_and_has_room_again_when_two_marks_are_reached() {
        let mut backlog = Backlog::new(0);
        let mut depth = |rings: usize, marks: u64| {
            backlog.rings = (0..rings).collect();
            backlog.marks = (0..marks).map(Event).collect();
            backlog.look();
            backlog.depth
        };
        assert!(depth(1, 3) == Depth::Shallow && depth(1, 4) == Depth::Deep && depth(1, 13) == Depth::Deep);
        assert!(depth(1, 14) == Depth::Full && depth(1, 13) == Depth::Full && depth(1, 12) == Depth::Deep);
        assert!(
            depth(4, 11) == Depth::Full && depth(100, 4) == Depth::Full && depth(100, 2) == Depth::Shallow
        );
    }
}
