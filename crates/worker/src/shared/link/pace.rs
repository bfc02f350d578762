//! How far the copies of a context's programs may go beside those of other contexts of the GPU: one virtual time passes in all.
//!
//! ```text
//!   virtual time   ──────┬───────── a window ─────────┬──────▶
//!                        least of all that copy       nobody's next piece begins beyond
//! ```
//!
//! The queue of a context serves the least of its flows, so what is least of all contexts is served by the queue that has it: it
//! is never held. The others wait for it as long as it claims the link ([`crate::gpu_link`]'s page).

use std::time::Duration;

use super::{Shared, State};
use crate::gpu_link::{Claimant, now};
use crate::shared::fair_queue::CopyRank;
use crate::shared::piece::Direction;

/// Of whom nothing was done for so long, though it has copies under way, others do not wait: it may be behind something else.
const STALLED: Duration = Duration::from_millis(200);

impl Shared {
    /// A program's copy is to be issued: how far that may go now.
    pub(super) fn keep_pace(&self, state: &mut State, direction: Direction) {
        let Some(gpu) = &self.gpu else { return };
        let (page, at, now) = (gpu.page(), direction as usize, now());
        page.note_queue(direction, now);
        let (way, least) = (&mut state.ways[at], page.least_claim(direction, now));
        if !state.claims[at] && way.bytes[CopyRank::Program as usize] == 0 {
            way.begin_at(page.first_time(direction, now));
        }
        way.limit = least.map(|least| least.saturating_add(self.settings.window));
        state.company[at] = least.is_some() || page.queues_elsewhere(direction, now);
    }

    /// Tells the others how far the programs' copies are, if some wait or others copy too.
    pub(super) fn claim(&self, state: &mut State, direction: Direction) {
        let Some(gpu) = &self.gpu else { return };
        let (way, at) = (&state.ways[direction as usize], direction as usize);
        gpu.page().advance_clock(direction, way.time());
        let is_stalled = way.bytes[CopyRank::Program as usize] > 0
            && way.first_since.is_some_and(|since| since.elapsed() > STALLED);
        let waiting = way.least();
        if is_stalled || !(waiting.is_some() || state.company[at]) {
            return;
        }
        gpu.page().claim(direction, Claimant::Queue, waiting.unwrap_or(way.time()), now());
        if !std::mem::replace(&mut state.claims[at], true) {
            // It is taken back by the thread.
            self.wake.notify_one();
        }
    }

    /// Claims it again, or no more where nothing is to be copied.
    pub(super) fn claim_on(&self, state: &mut State, direction: Direction) {
        let Some(gpu) = &self.gpu else { return };
        let (way, at) = (&state.ways[direction as usize], direction as usize);
        let waits = way.waits(CopyRank::Program);
        let copies = way.bytes[CopyRank::Program as usize] > 0 && state.company[at];
        if waits || copies {
            self.keep_pace(state, direction);
            self.claim(state, direction);
        } else if std::mem::take(&mut state.claims[at]) {
            gpu.page().unclaim(direction);
        }
    }
}
