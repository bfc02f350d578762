//! Whose turn it is with a sandbox: one operation at a time, and after its end none.
//!
//! What a turn begins and ends with is done with it locked, so that whoever reads in the record that a sandbox is at
//! rest gets its turn, if no other comes first.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rekindle_protocol::daemon::State;

use crate::error::{Error, Result};

/// How long a turn that passes by itself is waited for.
const PASSING_LIMIT: Duration = Duration::from_secs(30);

/// What has the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// An operation, by the state that the sandbox is in while it goes on.
    Operation(State),
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
pub struct Turn {
    busy: Mutex<Option<Busy>>,
    free: Condvar,
}

impl Turn {
    /// Takes the turn for an operation and does what that begins with; unless something else has it for longer than
    /// `waits_for` allows to wait for.
    pub fn take(
        &self,
        state: State,
        waits_for: impl Fn(Busy) -> bool,
        begin: impl FnOnce() -> Result<()>,
        refuse: impl FnOnce(Busy) -> Error,
    ) -> Result<()> {
        let waits = |busy: &mut Option<Busy>| busy.is_some_and(&waits_for);
        let waited = self.free.wait_timeout_while(self.lock(), PASSING_LIMIT, waits);
        let mut busy = waited.unwrap_or_else(PoisonError::into_inner).0;
        match *busy {
            Some(other) => Err(refuse(other)),
            None => begin().map(|()| *busy = Some(Busy::Operation(state))),
        }
    }

    /// Does what the operation ends with and lets others have the turn.
    pub fn give_back(&self, end: impl FnOnce()) {
        let mut busy = self.lock();
        end();
        *busy = None;
        self.free.notify_all();
    }

    /// Waits for the operation under way, does what is to be done after it, and lets nobody have the turn any more.
    pub fn end(&self, last: impl FnOnce()) {
        let operation = |busy: &mut Option<Busy>| matches!(busy, Some(Busy::Operation(_)));
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

    fn refused(busy: Busy) -> Error {
        Error::Occupied { name: "one".to_string(), state: format!("{busy:?}") }
    }

    fn take(turn: &Turn, state: State) -> Result<()> {
        turn.take(state, Busy::passes, || Ok(()), refused)
    }

    #[test]
    fn who_sees_it_at_rest_gets_the_turn() {
        let turn = Turn::default();
        take(&turn, State::Checkpointing).unwrap();
        let at_rest = Barrier::new(2);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| {
                at_rest.wait();
                take(&turn, State::FallingAsleep)
            });
            turn.give_back(|| {
                at_rest.wait();
                // Long enough for the other to come.
                std::thread::sleep(Duration::from_millis(20));
            });
            next.join().unwrap().unwrap();
        });
    }

    #[test]
    fn what_passes_is_waited_for_and_nothing_else() {
        let turn = Turn::default();
        take(&turn, State::Waking).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| take(&turn, State::Checkpointing));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!next.is_finished());
            turn.give_back(|| {});
            next.join().unwrap().unwrap();
        });
        assert!(matches!(take(&turn, State::FallingAsleep), Err(Error::Occupied { .. })));
        turn.give_back(|| {});
        take(&turn, State::FallingAsleep).unwrap();
    }

    #[test]
    fn what_cannot_begin_leaves_the_turn_to_others() {
        let turn = Turn::default();
        let begun = turn.take(State::Waking, Busy::passes, || Err(refused(Busy::End)), refused);
        assert!(begun.is_err());
        take(&turn, State::Waking).unwrap();
    }

    #[test]
    fn the_end_waits_for_the_operation_and_nothing_follows_but_another_end() {
        let turn = Turn::default();
        take(&turn, State::Checkpointing).unwrap();
        std::thread::scope(|scope| {
            let end = scope.spawn(|| turn.end(|| {}));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!end.is_finished());
            turn.give_back(|| {});
            end.join().unwrap();
        });
        assert!(take(&turn, State::Checkpointing).is_err());
        turn.end(|| {});
    }
}
