//! The link of a GPU that several workers have: what programs copy to the host goes before what is copied there for them, in
//! whichever worker.
//!
//! ```text
//!   a program's copy ─▶ its stream, an event before it and one behind it ─▶ [`page`]: a program copies
//!                                                                               ║ seen by all workers of the GPU
//!   a drain's, dump's, ... copy ─ piece ─▶ does none copy, or is it a turn's time? ─▶ its stream
//! ```
//!
//! To the GPU all go as they come: what a restore or declared data brings a program waits for, as for its own copies.
//!
//! A program's copy never waits here, and nothing is noted of it while nothing is copied for programs and no shared context
//! copies: such are to have no more of the link than it. Which copies of programs that share contexts go first is
//! [`crate::shared`]'s.

mod page;
mod pieces;
mod programs;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rekindle_device::{Device, Event, Stream};
use rekindle_protocol::worker::LINKS_VARIABLE;

pub(crate) use page::{Claimant, LinkPage, now};
use pieces::Piece;
use programs::ProgramCopy;
pub(crate) use programs::SMALL;

use crate::shared::{Direction, LinkSettings};

/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: u32 = 2;
/// How long the thread rests between two looks: at first, and when nothing happens.
const FIRST_NAP: Duration = Duration::from_micros(20);
const LAST_NAP: Duration = Duration::from_micros(100);
/// Turns of copies for programs, while programs copy: of so many pieces' time one is theirs.
const TURNS: u64 = 16;
/// A program that has copied may copy again: so long the link is left to it, or a piece's time if that is less. Anticipatory
/// scheduling (Iyer and Druschel, SOSP 2001).
const ANTICIPATED: u64 = 2_000_000;
/// Of a piece, until one was measured.
const PIECE_TIME: u64 = 500_000;

/// A context's place at the link of its GPU.
pub(crate) struct GpuLink {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<dyn Device>,
    settings: LinkSettings,
    page: LinkPage,
    state: Mutex<State>,
    wake: Condvar,
    /// How long a piece last took, in nanoseconds, by direction.
    piece_time: [AtomicU64; 2],
}

#[derive(Default)]
struct State {
    copies: VecDeque<ProgramCopy>,
    pieces: [VecDeque<Piece>; 2],
    /// Bytes of pieces that are under way, or about to be.
    bytes: [u64; 2],
    /// The virtual time that programs' copies have come to.
    times: [u64; 2],
    /// When one of them was last seen to be under way, or to have ended, in nanoseconds.
    seen: [u64; 2],
    /// When a piece was last found to be done.
    last_done: [Option<Instant>; 2],
    /// Events that are not in use.
    events: Vec<Event>,
    has_thread: bool,
    over: bool,
}

impl GpuLink {
    /// None where the settings are `off`, or this worker is not told where pages are.
    pub(crate) fn open(device: &Arc<dyn Device>, settings: Option<LinkSettings>) -> Option<Arc<GpuLink>> {
        let directory = std::env::var_os(LINKS_VARIABLE)?;
        GpuLink::open_in(Path::new(&directory), device.clone(), settings?)
    }

    fn open_in(directory: &Path, device: Arc<dyn Device>, settings: LinkSettings) -> Option<Arc<GpuLink>> {
        let page = match LinkPage::open(directory, &device.info().uuid) {
            Ok(Some(page)) => page,
            Ok(None) => {
                log::warn!(
                    "the link's page has no place: too many workers have this GPU; copies go as they come"
                );
                return None;
            }
            Err(error) => {
                log::warn!("no page of the link in {}: {error}; copies go as they come", directory.display());
                return None;
            }
        };
        let (state, wake) = (Mutex::default(), Condvar::new());
        let piece_time = [PIECE_TIME, PIECE_TIME].map(AtomicU64::new);
        Some(Arc::new(GpuLink {
            shared: Arc::new(Shared { device, settings, page, state, wake, piece_time }),
        }))
    }

    pub(crate) fn page(&self) -> &LinkPage {
        &self.shared.page
    }

    /// Whether what is copied for programs gives way to programs of other workers.
    pub(crate) fn gives_way(way: Direction) -> bool {
        way == Direction::ToHost
    }

    /// Whether programs of other workers copy, or are about to copy again, which is to be given way to.
    pub(crate) fn copying_elsewhere(&self, way: Direction, now: u64) -> bool {
        let page = self.page();
        GpuLink::gives_way(way)
            && (page.copying_elsewhere(way, now)
                || page.last_copy_elsewhere(way) + self.shared.anticipated(way) > now)
    }

    /// Notes how long a piece of a copy for a program took.
    pub(crate) fn note_piece_time(&self, way: Direction, took: Duration) {
        self.shared.note_piece_time(way, took);
    }

    /// How long (nanoseconds) it is from one turn of copies for programs to the next while programs copy.
    pub(crate) fn interval(&self, way: Direction) -> u64 {
        self.shared.interval(way)
    }
}

impl Drop for GpuLink {
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_piece_time(&self, way: Direction, took: Duration) {
        self.piece_time[way as usize].store(took.as_nanos() as u64, Ordering::Relaxed);
    }

    fn anticipated(&self, way: Direction) -> u64 {
        self.piece_time[way as usize].load(Ordering::Relaxed).min(ANTICIPATED)
    }

    fn interval(&self, way: Direction) -> u64 {
        let piece = self.piece_time[way as usize].load(Ordering::Relaxed);
        ((TURNS - 1) * piece).clamp(1_000_000, 500_000_000)
    }

    /// Puts an event into a stream; none if the driver does not take it.
    fn mark(&self, stream: Stream) -> Option<Event> {
        let kept = self.state().events.pop();
        let event = kept.or_else(|| self.device.event_create(UNTIMED).ok())?;
        match self.device.event_record(event, stream, 0) {
            Ok(()) => Some(event),
            Err(_) => {
                self.state().events.push(event);
                None
            }
        }
    }

    /// Whether the thread is there that looks what is done.
    fn has_thread(self: &Arc<Shared>, state: &mut State) -> bool {
        if !state.has_thread {
            let shared = self.clone();
            match std::thread::Builder::new().name("gpu link".into()).spawn(move || shared.run()) {
                Ok(_) => state.has_thread = true,
                Err(error) => log::warn!("the link's thread cannot be started: {error}"),
            }
        }
        state.has_thread
    }

    /// Looks what is done, and tells the others; whether something has changed.
    fn look(&self, state: &mut State) -> bool {
        let changed = [self.look_at_copies(state), self.look_at_pieces(state)];
        let now = now();
        for way in Direction::ALL {
            self.tell(state, way, now);
            if changed.iter().any(|changed| changed[way as usize]) {
                self.page.ring(way);
            }
        }
        changed.as_flattened().contains(&true)
    }

    fn tell(&self, state: &mut State, way: Direction, now: u64) {
        let copying = state.copies.iter().any(|copy| copy.way == way && copy.is_under_way());
        self.page.set_copying(way, copying, now);
        if copying {
            self.page.note_copy(way, now);
            state.seen[way as usize] = now;
        }
        self.page.set_bulk(way, state.bytes[way as usize], now);
        match copying {
            true => self.page.claim(way, Claimant::Program, state.times[way as usize], now),
            false => self.page.unclaim(way),
        }
    }

    fn is_done(&self, event: Event) -> bool {
        // Where the context has failed nothing is under way any more.
        !matches!(self.device.event_query(event), Ok(false))
    }

    /// The life of the thread.
    fn run(self: Arc<Shared>) {
        // The kernel may otherwise lengthen short sleeps by 50 µs.
        // SAFETY: sets a property of this thread only.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        if let Err(code) = self.device.bind() {
            self.state().over = true;
            return log::error!("the link's thread cannot use the context: {code}");
        }
        let mut nap = FIRST_NAP;
        let mut state = self.state();
        while !state.over {
            if state.copies.is_empty() && state.pieces.iter().all(VecDeque::is_empty) {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                nap = FIRST_NAP;
                continue;
            }
            nap = if self.look(&mut state) { FIRST_NAP } else { (nap * 3 / 2).min(LAST_NAP) };
            state = self.wake.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
