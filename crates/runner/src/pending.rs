//! A call between its connection, which waits for its time to be over, and its instance, which answers it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    UnderWay,
    /// The instance has it, and writes the answer.
    Answering,
    Answered,
    /// Its time is over: the connection answers.
    Late,
}

#[derive(Debug)]
pub struct Pending {
    phase: Mutex<Phase>,
    changed: Condvar,
}

impl Pending {
    pub fn new() -> Pending {
        Pending { phase: Mutex::new(Phase::UnderWay), changed: Condvar::new() }
    }

    /// Whether the answer is the instance's to write. It then says when it has.
    pub fn claim(&self) -> bool {
        let mut phase = self.lock();
        if *phase == Phase::UnderWay {
            *phase = Phase::Answering;
        }
        *phase == Phase::Answering
    }

    pub fn answered(&self) {
        *self.lock() = Phase::Answered;
        self.changed.notify_all();
    }

    /// Waits for the answer. False: there is none in time, and will be none.
    pub fn wait(&self, limit: Duration) -> bool {
        let under_way = |phase: &mut Phase| *phase == Phase::UnderWay;
        let (mut phase, _) = self
            .changed
            .wait_timeout_while(self.lock(), limit, |phase| *phase != Phase::Answered)
            .unwrap_or_else(PoisonError::into_inner);
        if under_way(&mut phase) {
            *phase = Phase::Late;
            return false;
        }
        // An answer that is begun is one.
        let _phase = self
            .changed
            .wait_while(phase, |phase| *phase != Phase::Answered)
            .unwrap_or_else(PoisonError::into_inner);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_the_instance_answers_or_the_connection() {
        let pending = Pending::new();
        assert!(!pending.wait(Duration::ZERO));
        assert!(!pending.claim());

        let pending = Pending::new();
        std::thread::scope(|scope| {
            assert!(pending.claim());
            let waits = scope.spawn(|| pending.wait(Duration::ZERO));
            pending.answered();
            assert!(waits.join().unwrap());
        });
    }
}
