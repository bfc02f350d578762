//! Times of the steps of a save or restore.

use std::collections::BTreeMap;
use std::time::Instant;

use rekindle_protocol::worker::Phase;

pub(crate) struct Timer {
    began: Instant,
    step: Instant,
    phases: Vec<Phase>,
}

impl Timer {
    pub(crate) fn start() -> Timer {
        let now = Instant::now();
        Timer { began: now, step: now, phases: Vec::new() }
    }

    /// Ends a step; the next begins.
    pub(crate) fn lap(&mut self, name: &str, bytes: u64) {
        let now = Instant::now();
        self.phases.push(Phase {
            name: name.to_string(),
            start_us: (self.step - self.began).as_micros() as u64,
            duration_us: (now - self.step).as_micros() as u64,
            bytes,
            ..Phase::default()
        });
        self.step = now;
    }

    /// When it was started.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Where the bytes of the last step came from.
    pub(super) fn from(&mut self, from: BTreeMap<String, u64>) {
        if let Some(phase) = self.phases.last_mut() {
            phase.from = from;
        }
    }

    /// What the last step was made of.
    pub(super) fn count<const N: usize>(&mut self, counts: [(&str, u64); N]) {
        if let Some(phase) = self.phases.last_mut() {
            let some = counts.into_iter().filter(|(_, count)| *count > 0);
            phase.counts = some.map(|(what, count)| (what.to_string(), count)).collect();
        }
    }

    pub(super) fn phases(self) -> Vec<Phase> {
        self.phases
    }
}
