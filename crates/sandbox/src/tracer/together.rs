//! One processor for CRIU, its tracer and the thread of the program that CRIU leads.
//!
//! CRIU has each thread do something by itself: it goes on, does that, and stands again, and none of the three does anything
//! beside another. A thread that goes on would be woken on a processor that has nothing to do, and that tells of its stand on
//! another one. In a virtual machine each of these takes longer than all that is done in between.

use nix::sched::CpuSet;

use super::TracerState;
use super::request::Request;
use super::tracee::Tracee;
use crate::affinity::{self, OWN};

/// Whether a thread goes on by it, until it stands again.
fn goes_on(request: Request) -> bool {
    matches!(request, libc::PTRACE_CONT | libc::PTRACE_SYSCALL | libc::PTRACE_SINGLESTEP)
}

impl TracerState {
    /// A thread is about to be asked for this.
    pub(super) fn bring_together(&mut self, request: Request, thread: i32) {
        // Before that somebody may look which processors it has.
        let may = || self.answers.as_ref().is_some_and(|answers| answers.are_processors_noted());
        if !goes_on(request) || !may() {
            return;
        }
        if self.processor_of_all.is_none() {
            self.processor_of_all = take(self.criu);
        }
        if let (Some(one), Some(tracee)) = (&self.processor_of_all, self.tracees.get_mut(&thread))
            && tracee.processors.is_none()
        {
            let had = affinity::of(thread);
            tracee.processors = had.filter(|_| affinity::set(thread, one).is_ok());
        }
    }
}

/// CRIU and the calling thread, both of which end with the dump, have one from now on.
fn take(criu: i32) -> Option<CpuSet> {
    let one = affinity::here()?;
    let both = affinity::set(OWN, &one).and_then(|()| affinity::set(criu, &one));
    both.is_ok().then_some(one)
}

impl Tracee {
    /// It stands, and has the processors again that it had.
    pub fn gets_back_processors(&mut self, thread: i32) {
        if let Some(had) = self.processors.take() {
            affinity::give_back(thread, &had);
        }
    }
}
