//! The phases of one checkpoint or restore, on one clock, in lanes that go on side by side.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::Written;
use rekindle_protocol::worker::{Phase, TransferReport, WorkWait};

/// The lanes: who works.
pub const DAEMON: &str = "daemon";
pub const CPU: &str = "cpu half";
/// What the CPU half needs and CRIU does not wait for: its sandbox, checks of pages.
pub const SANDBOX: &str = "sandbox";
pub const PAGES: &str = "cpu pages";
pub const GPU: &str = "gpu half";
pub const PINNED: &str = "pinned memory";

/// The restore's clock.
#[derive(Clone, Copy)]
pub struct Clock {
    pub now: Instant,
    pub now_us: u64,
}

impl Clock {
    /// It shows so much now.
    pub fn at(now_us: u64) -> Clock {
        Clock { now: Instant::now(), now_us }
    }

    pub fn elapsed_us(&self) -> u64 {
        self.now_us + self.now.elapsed().as_micros() as u64
    }
}

/// Phases may be noted from several threads: halves of the work run side by side.
pub struct Timeline {
    began: Instant,
    phases: Mutex<Vec<Phase>>,
    memory: Mutex<Vec<TransferReport>>,
    waited: Mutex<Vec<WorkWait>>,
    written: OnceLock<Written>,
    /// For how long the program stood still, in all.
    stopped: Mutex<Duration>,
}

/// Where one thread notes what it does.
#[derive(Clone, Copy)]
pub struct Lane<'a> {
    timeline: &'a Timeline,
    name: &'static str,
}

impl Timeline {
    pub fn begin() -> Timeline {
        Timeline {
            began: Instant::now(),
            phases: Mutex::default(),
            memory: Mutex::default(),
            waited: Mutex::default(),
            written: OnceLock::new(),
            stopped: Mutex::default(),
        }
    }

    pub fn elapsed_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    pub fn lane(&self, name: &'static str) -> Lane<'_> {
        Lane { timeline: self, name }
    }

    /// Runs a step of the daemon's own and notes how long it took, whether or not it worked.
    pub fn time<T>(&self, name: &str, step: impl FnOnce() -> T) -> T {
        self.lane(DAEMON).time(name, step)
    }

    pub fn phases(&self) -> Vec<Phase> {
        let mut phases = self.lock().clone();
        phases.sort_by_key(|phase| phase.start_us);
        phases
    }

    /// What was tried came to nothing, and is begun again.
    pub fn begin_again(&self) {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.waited.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The program stood still for so long, once more.
    pub fn note_stop(&self, stopped: Duration) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) += stopped;
    }

    /// For how long it stood still.
    pub fn stopped_us(&self) -> u64 {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).as_micros() as u64
    }

    /// How GPU memory of a process came to its image.
    pub fn note_memory(&self, way: Option<TransferReport>) {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).extend(way);
    }

    pub fn memory(&self) -> Vec<TransferReport> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For what a process stood still.
    pub fn note_wait(&self, waited: Option<WorkWait>) {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner).extend(waited);
    }

    pub fn waited(&self) -> Vec<WorkWait> {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the program has written since its image before.
    pub fn note_written(&self, written: Written) {
        let _ = self.written.set(written);
    }

    pub fn written(&self) -> Option<Written> {
        self.written.get().cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Phase>> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane<'_> {
    /// Runs a step and notes how long it took, whether or not it worked.
    pub fn time<T>(&self, name: &str, step: impl FnOnce() -> T) -> T {
        self.wait(name, &[], step)
    }

    /// As [`Lane::time`], for a step that does nothing but wait for others.
    pub fn wait<T>(&self, name: &str, others: &[&str], step: impl FnOnce() -> T) -> T {
        let start_us = self.timeline.elapsed_us();
        let value = step();
        self.push(Phase {
            name: name.to_string(),
            start_us,
            duration_us: self.timeline.elapsed_us() - start_us,
            waited_for: others.iter().map(|lane| lane.to_string()).collect(),
            ..Phase::default()
        });
        value
    }

    /// Notes a step that was measured elsewhere.
    pub fn note(&self, name: &str, start_us: u64, duration_us: u64, bytes: u64) {
        self.push(Phase { name: name.to_string(), start_us, duration_us, bytes, ..Phase::default() });
    }

    /// Takes the phases of a part that counts from its own beginning, `start_us` on this clock.
    pub fn merge(&self, start_us: u64, phases: impl IntoIterator<Item = Phase>) {
        for phase in phases {
            self.push(Phase { start_us: phase.start_us + start_us, ..phase });
        }
    }

    fn push(&self, phase: Phase) {
        self.timeline.lock().push(Phase { lane: self.name.to_string(), ..phase });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_of_all_lanes_come_in_order() {
        let timeline = Timeline::begin();
        timeline
            .lane(GPU)
            .merge(500_000, [Phase { name: "buffers".into(), start_us: 7, ..Phase::default() }]);
        timeline.time("checks", || ());
        timeline.lane(CPU).wait("meet", &[GPU], || ());
        let phases = timeline.phases();
        let names: Vec<_> = phases.iter().map(|phase| (&*phase.lane, &*phase.name)).collect();
        assert_eq!(names, [(DAEMON, "checks"), (CPU, "meet"), (GPU, "buffers")]);
        assert_eq!(phases[1].waited_for, [GPU]);
        assert_eq!(phases[2].start_us, 500_007);
    }
}
