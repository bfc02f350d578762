//! Whether a client has work for the multiprocessors, where that is asked: its launches say when it begins, and the division
//! looks when it has ended.
//!
//! A launch is counted before it is looked whether the client is taken to rest, and the client is taken to rest before it is
//! looked whether a launch was counted: so one of the two sees the other.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};

use super::division::{Division, MemberId};

/// Nobody asks.
const UNASKED: u8 = 0;
const RESTS: u8 = 1;
const WORKS: u8 = 2;

#[derive(Default)]
pub(super) struct WorkSign {
    state: AtomicU8,
    /// So many launches since it is asked.
    launches: AtomicU64,
    /// Who is told.
    division: OnceLock<(Weak<Division>, MemberId)>,
}

impl WorkSign {
    pub(super) fn tell(&self, division: Weak<Division>, member: MemberId) {
        let _ = self.division.set((division, member));
    }

    /// The client is about to launch something. It holds nothing that the division may want.
    pub(super) fn launches(&self) {
        if self.state.load(Ordering::Relaxed) == UNASKED {
            return;
        }
        self.launches.fetch_add(1, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == RESTS
            && let Some((division, member)) = self.division.get()
            && let Some(division) = division.upgrade()
        {
            division.begin(*member);
        }
    }

    pub(super) fn launched(&self) -> u64 {
        self.launches.load(Ordering::SeqCst)
    }

    /// It is not asked any more.
    pub(super) fn unask(&self) {
        self.state.store(UNASKED, Ordering::SeqCst);
    }

    pub(super) fn set_works(&self) {
        self.state.store(WORKS, Ordering::SeqCst);
    }

    /// It is taken to rest, if it has launched nothing since it had launched so much: false otherwise.
    pub(super) fn set_rests(&self, launched: u64) -> bool {
        self.state.store(RESTS, Ordering::SeqCst);
        let rests = self.launched() == launched;
        if !rests {
            self.set_works();
        }
        rests
    }
}
