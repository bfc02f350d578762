//! The phases of one checkpoint or restore, on one clock.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rekindle_protocol::worker::Phase;

/// Phases may be noted from several threads: halves of the work run side by side.
pub struct Timeline {
    began: Instant,
    phases: Mutex<Vec<Phase>>,
}

impl Timeline {
    pub fn begin() -> Timeline {
        Timeline { began: Instant::now(), phases: Mutex::default() }
    }

    pub fn elapsed_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Runs a step and notes how long it took, whether or not it worked.
    pub fn time<T>(&self, name: &str, step: impl FnOnce() -> T) -> T {
        let start_us = self.elapsed_us();
        let value = step();
        let duration_us = self.elapsed_us() - start_us;
        self.note(Phase { name: name.to_string(), start_us, duration_us, bytes: 0 });
        value
    }

    pub fn note(&self, phase: Phase) {
        self.lock().push(phase);
    }

    /// Takes the phases of a part that counts from its own beginning, `start_us` on this clock.
    pub fn merge(&self, start_us: u64, prefix: &str, phases: impl IntoIterator<Item = Phase>) {
        self.lock().extend(phases.into_iter().map(|phase| Phase {
            name: format!("{prefix}{}", phase.name),
            start_us: phase.start_us + start_us,
            ..phase
        }));
    }

    pub fn phases(&self) -> Vec<Phase> {
        let mut phases = self.lock().clone();
        phases.sort_by_key(|phase| phase.start_us);
        phases
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Phase>> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
