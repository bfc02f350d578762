//! Threads that are brought to a stand.
//!
//! CRIU brings one after the other to a stand, and waits for each. So once it begins with a process, all threads of that are
//! interrupted, and come to their stands beside each other.

use std::io;

use super::TracerState;
use super::calls::{Answer, Call, Memory};
use super::request::{carry_out, ptrace};
use super::tracee::Tracee;
use super::wait::ended;
use crate::process;

/// A thread that is traced before CRIU has asked for that.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    #[default]
    No,
    /// CRIU knows nothing of it.
    Seized,
    /// CRIU has seized it, and is about to interrupt it.
    Known,
}

impl TracerState {
    pub(super) fn seize(&mut self, call: &Call, thread: i32) -> io::Result<Answer> {
        // One of its own, of which it finds out what the kernel can do.
        if process::parent(thread) == Some(call.pid) {
            return Ok(Answer::Kernel);
        }
        let [request, _, address, options, ..] = call.words;
        if let Some(tracee) = self.tracees.get_mut(&thread).filter(|tracee| tracee.ahead == Ahead::Seized) {
            if tracee.ended.is_some() || ended(thread).is_some() {
                self.tracees.remove(&thread);
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            tracee.ahead = Ahead::Known;
            return Ok(Answer::Value(0));
        }
        let done = carry_out(request as u32, thread, address, options, Memory(call.pid))?;
        let known = self.tracees.values().map(|tracee| tracee.process).collect();
        let tracee = Tracee::new(thread, options, &known);
        let (process, is_first) = (tracee.process, !known.contains(&tracee.process));
        self.take_on(thread, tracee);
        if is_first && self.answers.is_some() {
            self.interrupt_others(process, thread, options);
        }
        Ok(Answer::Value(done))
    }

    /// Interrupts all threads of a process but one.
    fn interrupt_others(&mut self, process: i32, first: i32, options: u64) {
        for thread in process::threads(process).into_iter().filter(|thread| *thread != first) {
            // What cannot be traced, as one that is ending, CRIU comes to by itself.
            if ptrace(libc::PTRACE_SEIZE, thread, 0, options).is_ok() {
                let _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0);
                let ahead = Tracee { ahead: Ahead::Seized, ..Tracee::of(process, options) };
                self.take_on(thread, ahead);
            }
        }
    }

    fn take_on(&mut self, thread: i32, tracee: Tracee) {
        self.tracees.insert(thread, tracee);
        self.knows_all = false;
        if let Some(answers) = &mut self.answers {
            // Nothing is known of it yet, but that it is traced.
            answers.tell(thread, 0..0, &[]);
        }
    }
}
