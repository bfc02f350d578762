//! One processor for CRIU and the program that it restores, until that is about to run.
//!
//! CRIU leads every thread of the program through its last system calls by ptrace: some switches between two processes
//! for each, and none of them does anything beside the other. On one processor such a switch needs nobody to be woken on
//! another, which takes longer than all that is done in between. Once CRIU has only to let go of the threads they have all
//! processors again: those that run already would take CRIU's from it, for some milliseconds at a time, while others still
//! stand.

use std::collections::HashSet;

use nix::sched::CpuSet;

use crate::affinity::{self, OWN};
use crate::process;

/// This process, CRIU and what these begin have one processor.
pub struct OneProcessor {
    before: CpuSet,
}

impl OneProcessor {
    /// For this process and these threads; where it cannot be had, all goes on as it is.
    pub fn take(threads: impl IntoIterator<Item = i32>) -> Option<OneProcessor> {
        let (before, one) = (affinity::of(OWN)?, affinity::here()?);
        affinity::set(OWN, &one).ok()?;
        for thread in threads {
            // One that has ended needs none.
            let _ = affinity::set(thread, &one);
        }
        Some(OneProcessor { before })
    }

    /// Gives all in the sandbox the processors that they had, those too that begin meanwhile. To be called by its init.
    pub fn give_back(self) {
        let mut done = HashSet::new();
        loop {
            let threads = process::all().into_iter().flat_map(process::threads);
            let new: Vec<_> = threads.filter(|thread| done.insert(*thread)).collect();
            if new.is_empty() {
                return;
            }
            for thread in new {
                affinity::give_back(thread, &self.before);
            }
        }
    }
}
