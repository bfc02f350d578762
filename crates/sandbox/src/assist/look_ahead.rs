//! What a thread of ours finds out about the program while CRIU has something else to do. CRIU waits for it, for about as long as
//! it would take itself, and finds out by itself what is not so, or what nobody looks at.

use std::sync::atomic::{AtomicU32, Ordering};

/// As in `in_criu.h`.
const LOOKED_AT: u32 = 1;
const SO: u32 = 2;
const NOT_SO: u32 = 3;

#[repr(transparent)]
pub(super) struct LookAhead(AtomicU32);

impl LookAhead {
    /// Before CRIU may ask.
    pub fn begin(&self) {
        self.0.store(LOOKED_AT, Ordering::Release);
    }

    /// All that is to be known with it has been written.
    pub fn end(&self, is_so: bool) {
        self.0.store(if is_so { SO } else { NOT_SO }, Ordering::Release);
    }

    #[cfg(test)]
    pub fn wait(&self) -> bool {
        while self.0.load(Ordering::Acquire) == LOOKED_AT {
            std::thread::yield_now();
        }
        self.0.load(Ordering::Acquire) == SO
    }
}
