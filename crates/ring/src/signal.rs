//! A counter in shared memory that one side advances and the other waits for.

use std::time::Duration;

use crate::atomic::{AtomicU32, Ordering, fence};
use crate::futex;
use crate::spin::{self, Spin};

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Ready,
    /// The other side has died.
    Dead,
}

/// The longest sleep between two looks at whether the other side lives.
pub(crate) const LOOK: Duration = Duration::from_millis(40);

/// Advanced by one side, awaited by the other. The count wraps.
#[repr(C)]
#[derive(Debug)]
pub struct Signal {
    count: AtomicU32,
    waiting: AtomicU32,
}

impl Signal {
    pub fn new() -> Signal {
        Signal { count: AtomicU32::new(0), waiting: AtomicU32::new(0) }
    }

    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Publishes everything written before, and wakes the other side if it sleeps.
    pub fn raise(&self) {
        self.count.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            futex::wake(&self.count);
        }
    }

    /// Waits until `ready`, which must become true before some `raise`, or until `alive` says no.
    pub fn wait(&self, spin: Spin, alive: impl Fn() -> bool, mut ready: impl FnMut() -> bool) -> Wait {
        if spin::spin(spin, &mut ready) {
            return Wait::Ready;
        }
        loop {
            let seen = self.count.load(Ordering::Acquire);
            self.waiting.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let done = ready();
            if !done {
                futex::wait(&self.count, seen, LOOK);
            }
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if done || ready() {
                return Wait::Ready;
            }
            if !alive() {
                return Wait::Dead;
            }
        }
    }
}

impl Default for Signal {
    fn default() -> Self {
        Self::new()
    }
}
