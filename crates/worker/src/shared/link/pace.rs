//! How far the copies of a context's programs may go beside those of other contexts of the GPU: one virtual time passes in all.
//!
//! ```text
//!   virtual time   ──────┬───────── a window ─────────┬──────▶
//!                        least of all that wait       nobody's next piece begins beyond
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
        let (page, way) = (gpu.page(), &mut state.ways[direction as usize]);
        let now = now();
        let least = page.least_claim(direction, now);
        if !state.claims[direction as usize] && way.bytes[CopyRank::Program as usize] == 0 {
            way.begin_at(page.first_time(direction, now));
        }
        way.limit = least.map(|least| least.saturating_add(self.settings.window));
    }

    /// Tells the others how far the programs' copies are, while some wait.
    pub(super) fn claim(&self, state: &mut State, direction: Direction) {
        let Some(gpu) = &self.gpu else { return };
        let way = &mut state.ways[direction as usize];
        gpu.page().advance_clock(direction, way.time());
        let is_stalled = way.bytes[CopyRank::Program as usize] > 0
            && way.first_since.is_some_and(|since| since.elapsed() > STALLED);
        if let Some(time) = way.least().filter(|_| !is_stalled) {
            gpu.page().claim(direction, Claimant::Queue, time, now());
            state.claims[direction as usize] = true;
        }
    }

    /// Takes back what was claimed where nothing waits any more.
    pub(super) fn unclaim(&self, state: &mut State) {
        let Some(gpu) = &self.gpu else { return };
        for way in Direction::ALL {
            if state.claims[way as usize] && !state.ways[way as usize].waits(CopyRank::Program) {
                gpu.page().unclaim(way);
                state.claims[way as usize] = false;
            }
        }
    }
}
