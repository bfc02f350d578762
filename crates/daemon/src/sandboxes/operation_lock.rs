//! One operation on a sandbox at a time, and none after its end.
//!
//! What an operation begins and ends with is done under the mutex, so that whoever reads in the record that a sandbox is
//! at rest gets the lock, if no other comes first.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rekindle_protocol::daemon::State;

use crate::error::{Error, Result};

/// How long an operation that passes by itself is waited for.
const PASSING_LIMIT: Duration = Duration::from_secs(30);

/// What has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// An operation, by the state that the sandbox is in while it goes on.
    Operation(State),
    /// One that has come to its end but for what it tidies up; the record says so already.
    Over(State),
    /// The program has ended.
    End,
}

impl Busy {
    /// Programs fall asleep and wake by themselves, so nobody is to blame for coming in between.
    pub fn passes(self) -> bool {
        matches!(self, Busy::Operation(State::FallingAsleep | State::Waking))
    }
}

#[derive(Default)]
pub struct OperationLock {
    busy: Mutex<Option<Busy>>,
    free: Condvar,
}

impl OperationLock {
    /// Takes the lock for an operation and does what that begins with; unless something else has it for longer than
    /// `waits_for` allows to wait for.
    pub fn acquire(
        &self,
        state: State,
        waits_for: impl Fn(Busy) -> bool,
        begin: impl FnOnce() -> Result<()>,
        refuse: impl FnOnce(Busy) -> Error,
    ) -> Result<()> {
        let waits = |busy: &mut Option<Busy>| {
            busy.is_some_and(|busy| matches!(busy, Busy::Over(_)) || waits_for(busy))
        };
        let waited = self.free.wait_timeout_while(self.lock(), PASSING_LIMIT, waits);
        let mut busy = waited.unwrap_or_else(PoisonError::into_inner).0;
        match *busy {
            Some(other) => Err(refuse(other)),
            None => begin().map(|()| *busy = Some(Busy::Operation(state))),
        }
    }

    /// Does what the operation ends with. Who comes from now on waits until it is released. Without an operation it is only done.
    pub fn is_over(&self, end: impl FnOnce()) {
        let mut busy = self.lock();
        end();
        if let Some(Busy::Operation(state)) = *busy {
            *busy = Some(Busy::Over(state));
        }
    }

    /// Does what is left to be done and lets others have the lock.
    pub fn release(&self, end: impl FnOnce()) {
        let mut busy = self.lock();
        end();
        *busy = None;
        self.free.notify_all();
    }

    /// Waits for the operation under way, does what is to be done after it, and lets nobody have the lock any more.
    pub fn close(&self, last: impl FnOnce()) {
        let operation = |busy: &mut Option<Busy>| matches!(busy, Some(Busy::Operation(_) | Busy::Over(_)));
        let mut busy = self.free.wait_while(self.lock(), operation).unwrap_or_else(PoisonError::into_inner);
        last();
        *busy = Some(Busy::End);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Busy>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::claims::ClaimError;

    fn refused(busy: Busy) -> Error {
        ClaimError::Sandbox { name: "one".to_string(), state: format!("{busy:?}") }.into()
    }

    fn acquire(lock: &OperationLock, state: State) -> Result<()> {
        lock.acquire(state, Busy::passes, || Ok(()), refused)
    }

    #[test]
    fn who_sees_it_at_rest_gets_the_lock() {
        let lock = OperationLock::default();
        acquire(&lock, State::Checkpointing).unwrap();
        let at_rest = Barrier::new(2);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| {
                at_rest.wait();
                acquire(&lock, State::FallingAsleep)
            });
            lock.release(|| {
                at_rest.wait();
                // Long enough for the other to come.
                std::thread::sleep(Duration::from_millis(20));
            });
            next.join().unwrap().unwrap();
        });
    }

    #[test]
    fn what_passes_is_waited_for_and_nothing_else() {
        let lock = OperationLock::default();
        acquire(&lock, State::Waking).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| acquire(&lock, State::Checkpointing));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!next.is_finished());
            lock.release(|| {});
            next.join().unwrap().unwrap();
        });
        assert!(matches!(
            acquire(&lock, State::FallingAsleep),
            Err(Error::Claims(ClaimError::Sandbox { .. }))
        ));
        lock.release(|| {});
        acquire(&lock, State::FallingAsleep).unwrap();
    }

    #[test]
    fn what_is_over_is_waited_for_by_all() {
        let lock = OperationLock::default();
        lock.is_over(|| {});
        acquire(&lock, State::Migrating).unwrap();
        lock.is_over(|| {});
        std::thread::scope(|scope| {
            let next = scope.spawn(|| lock.acquire(State::Checkpointing, |_| false, || Ok(()), refused));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!next.is_finished());
            lock.release(|| {});
            next.join().unwrap().unwrap();
        });
    }

    #[test]
    fn what_cannot_begin_leaves_the_lock_to_others() {
        let lock = OperationLock::default();
        let begun = lock.acquire(State::Waking, Busy::passes, || Err(refused(Busy::End)), refused);
        assert!(begun.is_err());
        acquire(&lock, State::Waking).unwrap();
    }

    #[test]
    fn the_end_waits_for_the_operation_and_nothing_follows_but_another_end() {
        let lock = OperationLock::default();
        acquire(&lock, State::Checkpointing).unwrap();
        std::thread::scope(|scope| {
            let end = scope.spawn(|| lock.close(|| {}));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!end.is_finished());
            lock.release(|| {});
            end.join().unwrap();
        });
        assert!(acquire(&lock, State::Checkpointing).is_err());
        lock.close(|| {});
    }
}
