//! What programs copy, as far as others have to know it.

use std::sync::Arc;

use rekindle_device::{Event, Result, Stream};

use super::{ANTICIPATED, GpuLink, Shared, State, now};
use crate::shared::Direction;

/// A copy of no more is not noted: nobody waits for it.
pub(crate) const SMALL: u64 = 64 << 10;
/// So many are noted at most, and so many looked at, the first first.
const MOST: usize = 1024;
const LOOKED_AT: usize = 16;

/// A copy of a program's that its stream was given.
pub(super) struct ProgramCopy {
    pub way: Direction,
    bytes: u64,
    /// Before it; none once that was reached.
    begun: Option<Event>,
    ended: Event,
}

impl ProgramCopy {
    /// Whether it uses the link now. Behind other work it does not.
    pub(super) fn is_under_way(&self) -> bool {
        self.begun.is_none()
    }
}

impl GpuLink {
    /// Makes a copy of a program's, of so many bytes, by giving it to the stream. Copies for programs wait from when it begins
    /// until it is done, and those of shared contexts have as many bytes meanwhile, but for a window.
    pub(crate) fn program_copies(
        &self,
        way: Direction,
        bytes: u64,
        stream: Stream,
        copy: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if bytes <= SMALL {
            return copy();
        }
        let (shared, now) = (&self.shared, now());
        let mut is_noted = shared.page.queues_elsewhere(way, now);
        if GpuLink::gives_way(way) {
            shared.page.note_copy(way, now);
            is_noted |= shared.page.expects_bulk(way, now);
        }
        if !is_noted {
            return copy();
        }
        let begun = shared.mark(stream);
        let made = copy();
        let ended = begun.and_then(|_| shared.mark(stream));
        let mut state = shared.state();
        match begun.zip(ended) {
            Some((begun, ended)) => {
                shared.note_copy(&mut state, ProgramCopy { way, bytes, begun: Some(begun), ended })
            }
            None => state.events.extend(begun.into_iter().chain(ended)),
        }
        drop(state);
        made
    }
}

impl Shared {
    fn note_copy(self: &Arc<Shared>, state: &mut State, copy: ProgramCopy) {
        if state.copies.len() >= MOST || state.over || !self.has_thread(state) {
            state.events.extend(copy.begun.into_iter().chain([copy.ended]));
            return;
        }
        state.copies.push_back(copy);
        if state.copies.len() == 1 {
            // Others are to know at once, and not when the thread is awake.
            self.look(state);
            self.wake.notify_one();
        }
    }

    /// Looks which copies have begun, and which are done: in which directions that has changed something.
    pub(super) fn look_at_copies(&self, state: &mut State) -> [bool; 2] {
        let State { copies, events, times, seen, .. } = state;
        let (mut changed, mut at) = ([false; 2], 0);
        while at < copies.len().min(LOOKED_AT) {
            let copy = &mut copies[at];
            let (direction, way) = (copy.way, copy.way as usize);
            if let Some(begun) = copy.begun.take_if(|begun| self.is_done(*begun)) {
                events.push(begun);
                changed[way] = true;
                let now = now();
                // One that copies all the time keeps its place.
                if seen[way] + ANTICIPATED < now {
                    times[way] = times[way].max(self.page.first_time(direction, now));
                }
                self.page.advance_clock(direction, times[way]);
                // It is not cut: all of it is had from its begin.
                times[way] += copy.bytes;
            }
            if copy.is_under_way() && self.is_done(copy.ended) {
                changed[way] = true;
                seen[way] = now();
                events.extend(copies.remove(at).map(|copy| copy.ended));
            } else {
                at += 1;
            }
        }
        changed
    }
}
