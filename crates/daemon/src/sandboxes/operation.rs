//! Operations on a sandbox: one at a time, and none after its end.

use rekindle_protocol::daemon::State;
use rekindle_sandbox::ending;

use super::Sandbox;
use crate::claims::ClaimError;
use crate::error::{Error, Result};
use crate::sandboxes::SandboxError;
use crate::sandboxes::operation_lock::Busy;
use crate::sandboxes::record::{Record, state_word};

/// An operation under way, such as a checkpoint.
pub struct Operation<'a> {
    sandbox: &'a Sandbox,
    /// What is done to it.
    wanted: &'static str,
}

impl Sandbox {
    /// As [`Sandbox::begin`], once the GPU half is done with falling asleep or waking.
    pub fn begin_settled(&self, state: State, wanted: &'static str) -> Result<Operation<'_>> {
        self.take_lock(state, wanted, Busy::passes)
    }

    /// As [`Sandbox::begin`], once the operation under way is over.
    pub fn begin_after(&self, state: State, wanted: &'static str) -> Result<Operation<'_>> {
        self.take_lock(state, wanted, |busy| matches!(busy, Busy::Operation(_)))
    }

    /// Begins an operation that no other may run beside; the state goes back when it is dropped.
    pub fn begin(&self, state: State, wanted: &'static str) -> Result<Operation<'_>> {
        self.take_lock(state, wanted, |_| false)
    }

    fn take_lock(
        &self,
        state: State,
        wanted: &'static str,
        waits_for: impl Fn(Busy) -> bool,
    ) -> Result<Operation<'_>> {
        let begin = || {
            if !self.lock().device {
                self.cpu(wanted)?;
            }
            self.update(|record| record.state = state).inspect_err(|_| self.rest())
        };
        let refuse = |busy| match busy {
            Busy::Operation(state) | Busy::Over(state) => {
                ClaimError::Sandbox { name: self.name(), state: state_word(state).to_string() }.into()
            }
            Busy::End => self.not_running(wanted),
        };
        self.operation_lock.acquire(state, waits_for, begin, refuse)?;
        Ok(Operation { sandbox: self, wanted })
    }

    /// Writes down what the operation under way, if there is one, has come to: nothing is being done to it any more, and what
    /// is asked for from now on waits until that has been tidied up.
    pub fn note_outcome(&self, change: impl FnOnce(&mut Record)) {
        self.operation_lock.is_over(|| {
            self.note_with_workers(|record| {
                change(record);
                record.rest();
            });
        });
    }

    /// Whether the program has ended, or does so within a moment.
    pub fn is_ending(&self) -> bool {
        let cpu = self.cpu.get();
        let has_ended = || cpu.is_some_and(|cpu| !matches!(cpu.exit_status(), Ok(None)));
        // Where there is no program yet, none is dying; one that nobody could look at has ended.
        let program = cpu.map_or_else(|| std::process::id() as i32, |cpu| cpu.root_pid().unwrap_or_default());
        ending::ends_soon(program, has_ended)
    }

    /// What failed because the program ended says that, whatever noticed it first.
    pub fn explain(&self, error: Error, wanted: &'static str) -> Error {
        if error.may_come_of_an_end() && self.is_ending() {
            log::info!("{error}");
            return SandboxError::EndedMeanwhile { name: self.name(), wanted }.into();
        }
        error
    }

    /// No operation goes on.
    fn rest(&self) {
        self.note(Record::rest);
    }
}

impl Operation<'_> {
    /// As [`Sandbox::explain`].
    pub fn explain(&self, error: Error) -> Error {
        self.sandbox.explain(error, self.wanted)
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.sandbox.operation_lock.release(|| self.sandbox.rest());
        self.sandbox.see_to_mending();
    }
}
