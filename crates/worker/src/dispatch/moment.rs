//! A moment in which the GPU has nothing to do for the program: a stop that begins then need not wait for the GPU.
//!
//! ```text
//!  program  ─launch─launch─ waits for a loss ┄┄┄┄┄┄┄┄┄┄┐ next step ─launch─▶
//!  GPU      ══════════ a step ══════════════════════════╡
//!                                                       └ now
//! ```

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::{Activity, Dispatcher};

/// How often it is looked.
const LOOK: Duration = Duration::from_micros(100);
/// So much shorter it is waited for where there was none the last time: a program that always has work enqueued may never have one.
const SHORTER: u32 = 10;

/// Somebody waits for such a moment, until then.
pub(super) struct Moment {
    until: Instant,
    answer: Sender<bool>,
}

impl Dispatcher {
    /// Tells of the next such moment, or at the limit that there was none; sooner if there was none the last time.
    pub(crate) fn await_moment(&mut self, limit: Duration, answer: Sender<bool>) {
        if !matches!(self.activity, Activity::Running) {
            let _ = answer.send(false);
            return;
        }
        let limit = if self.moment_was_missed { limit / SHORTER } else { limit };
        self.moment = Some(Moment { until: Instant::now() + limit, answer });
    }

    /// When it is to be looked again, if somebody waits. `is_quiet`: there are no requests.
    pub(super) fn look_at_moment(&mut self, is_quiet: bool) -> Option<Duration> {
        let until = self.moment.as_ref()?.until;
        let is_there = is_quiet && self.client.waiting.is_empty() && self.has_idle_gpus();
        let is_over = !matches!(self.activity, Activity::Running) || Instant::now() >= until;
        if !is_there && !is_over {
            return Some(LOOK);
        }
        if let Some(Moment { answer, .. }) = self.moment.take() {
            self.moment_was_missed = !is_there;
            let _ = answer.send(is_there);
        }
        None
    }

    fn has_idle_gpus(&mut self) -> bool {
        let client = &mut self.client;
        client.open_devices().all(|device| client.is_idle(device).unwrap_or(true))
    }
}
