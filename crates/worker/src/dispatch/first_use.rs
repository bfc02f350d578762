//! Memory that comes at the first use, before a request is done, and what a program has freed of it.
//!
//! What was freed and waits for the program to allocate again is given back when it rests. The driver waits for all of the
//! GPU's work when memory is unmapped, so not before.

use std::time::Duration;

use rekindle_ring::Record;

use super::{Activity, Dispatcher};

/// A program that has asked for nothing for so long rests.
const QUIET: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Freed {
    /// So many operations the program had asked for when it was last looked.
    looked: u64,
}

impl Dispatcher {
    /// Whether there is memory for all that a request may come to; else it is answered.
    pub(super) fn has_memory_for(&mut self, ring: usize, record: &Record<'_>) -> bool {
        if !self.client.has_unbacked() {
            return true;
        }
        let backed = self.client.back_for(ring, record);
        backed.map_err(|code| self.client.lacks_memory(ring, record, code)).is_ok()
    }

    /// Gives back what the program has freed, once in each rest.
    pub(super) fn look_at_freed(&mut self) {
        if !self.may_have_freed() || self.quiet_since.elapsed() < QUIET || !self.client.is_at_rest() {
            return;
        }
        self.freed.looked = self.client.operations;
        match self.client.give_back_freed() {
            Ok(0) => {}
            Ok(bytes) => log::debug!("{} MB that the program has freed are given back", bytes >> 20),
            Err(code) => log::warn!("what the program has freed stays in use: {code}"),
        }
    }

    /// When it is to be looked, if that is sooner.
    pub(super) fn look_for_freed(&self, nap: Duration) -> Duration {
        if self.may_have_freed() { nap.min(QUIET) } else { nap }
    }

    fn may_have_freed(&self) -> bool {
        self.client.gpus.waits_for_uses()
            && !self.client.has_memory_at_once
            && self.client.operations != self.freed.looked
            && matches!(self.activity, Activity::Running)
            && !self.is_draining()
    }
}
