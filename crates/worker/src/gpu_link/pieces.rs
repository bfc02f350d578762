//! What is copied to the host for programs: checkpoints, dumps. It gives way to what programs copy, piece by piece.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_device::{Device, Event, Result, Stream};

use super::{GpuLink, Shared, State, now};
use crate::shared::Direction;

/// So long (nanoseconds) after a program last began to copy little is under way at a time, for it may copy again: one of
/// another worker's, and one of this worker's, which may have been stopped for what is copied.
const LATELY_ELSEWHERE: u64 = 1_000_000_000;
const LATELY: u64 = 100_000_000;
/// How long who waits sleeps until it looks again: at first, and when nothing happens. The bell wakes it before.
const FIRST_NAP: Duration = Duration::from_micros(50);
const LAST_NAP: Duration = Duration::from_millis(1);
/// One that is first for so long does not wait for the link.
const STUCK: Duration = Duration::from_secs(1);

/// A piece that is under way.
pub(super) struct Piece {
    event: Event,
    bytes: u64,
    since: Instant,
}

/// How much of a copy may be made now.
enum Grant {
    /// All of it: no program copies.
    Rest,
    /// So many bytes, which count until they are there.
    Piece(u64),
}

impl GpuLink {
    /// Gives a stream a copy that is made for a program, as soon as that may be. Waits for programs' copies, but not for ever.
    pub(crate) fn copy_for_program(
        &self,
        way: Direction,
        (to, from, bytes): (u64, u64, u64),
        stream: Stream,
    ) -> Result<()> {
        let (shared, mut at) = (&self.shared, 0);
        while at < bytes {
            match shared.wait_for_turn(way, bytes - at) {
                Grant::Rest => return shared.device.copy(to + at, from + at, bytes - at, stream),
                Grant::Piece(piece) => {
                    let made = shared.device.copy(to + at, from + at, piece, stream);
                    let event = made.ok().and_then(|()| shared.mark(stream));
                    shared.note_piece(way, piece, event);
                    made?;
                    at += piece;
                }
            }
        }
        Ok(())
    }

    /// As [`GpuLink::copy_for_program`], where there may be no such link, and of what may not go over one.
    pub(crate) fn copy_by(
        link: Option<&GpuLink>,
        device: &dyn Device,
        (to, from, bytes): (u64, u64, u64),
        stream: Stream,
    ) -> Result<()> {
        let way = Direction::of(to, from).filter(|way| GpuLink::gives_way(*way));
        match link.zip(way) {
            Some((link, way)) => link.copy_for_program(way, (to, from, bytes), stream),
            None => device.copy(to, from, bytes, stream),
        }
    }
}

impl Shared {
    fn wait_for_turn(self: &Arc<Shared>, way: Direction, left: u64) -> Grant {
        let mut nap = FIRST_NAP;
        loop {
            let seen = self.page.bell(way);
            let now = now();
            self.page.expect_bulk(way, now);
            if let Some(grant) = self.grant(way, left, now) {
                return grant;
            }
            self.page.sleep(way, seen, nap);
            nap = (nap * 3 / 2).min(LAST_NAP);
        }
    }

    fn grant(self: &Arc<Shared>, way: Direction, left: u64, now: u64) -> Option<Grant> {
        let (own, elsewhere) = (self.page.last_copy(way), self.page.last_copy_elsewhere(way));
        let copying = self.page.copying(way, now) || own.max(elsewhere) + self.anticipated(way) > now;
        let lately = own + LATELY > now || elsewhere + LATELY_ELSEWHERE > now;
        if !copying && !lately {
            self.page.note_turn(way, now);
            return Some(Grant::Rest);
        }
        let mut state = self.state();
        if state.over || !self.has_thread(&mut state) {
            return Some(Grant::Rest);
        }
        let piece = left.min(self.settings.piece);
        let under_way = state.bytes[way as usize] + self.page.bulk_elsewhere(way, now);
        let may = match copying {
            true => under_way == 0 && self.page.take_turn(way, now, self.interval(way)),
            false => under_way == 0 || under_way + piece <= self.settings.window / 2,
        };
        if !may {
            return None;
        }
        state.bytes[way as usize] += piece;
        self.page.set_bulk(way, state.bytes[way as usize], now);
        self.page.note_turn(way, now);
        Some(Grant::Piece(piece))
    }

    /// A piece is under way, up to this event; without one it is not counted any more.
    fn note_piece(&self, way: Direction, bytes: u64, event: Option<Event>) {
        let mut state = self.state();
        match event {
            Some(event) => {
                state.pieces[way as usize].push_back(Piece { event, bytes, since: Instant::now() })
            }
            None => state.bytes[way as usize] -= bytes,
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Looks which pieces are done: in which directions some are.
    pub(super) fn look_at_pieces(&self, state: &mut State) -> [bool; 2] {
        Direction::ALL.map(|way| {
            let (direction, way) = (way, way as usize);
            let is_over = |piece: &Piece| self.is_done(piece.event) || piece.since.elapsed() > STUCK;
            let (over, left): (VecDeque<_>, _) = state.pieces[way].drain(..).partition(is_over);
            state.pieces[way] = left;
            for piece in &over {
                let done = Instant::now();
                let since = state.last_done[way].map_or(piece.since, |before| before.max(piece.since));
                self.note_piece_time(direction, done - since);
                state.last_done[way] = Some(done);
                state.bytes[way] -= piece.bytes;
                state.events.push(piece.event);
            }
            !over.is_empty()
        })
    }
}
