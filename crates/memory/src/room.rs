//! How much memory objects have together.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So often one that waits for room looks whether an object is used by nobody any more.
const LOOK: Duration = Duration::from_millis(50);

pub struct Budget {
    most: u64,
    used: Mutex<u64>,
    given: Condvar,
}

/// A part of it, until it is dropped.
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub fn new(most: u64) -> Arc<Budget> {
        Arc::new(Budget { most, used: Mutex::default(), given: Condvar::new() })
    }

    pub fn most(&self) -> u64 {
        self.most
    }

    /// What was taken, and not given back.
    pub fn taken(&self) -> u64 {
        *self.used()
    }

    fn used(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room. `evict` drops what nobody uses, one object at a time; false if there is none. Nothing
    /// for what never fits.
    pub fn take(self: &Arc<Budget>, bytes: u64, evict: impl Fn() -> bool) -> Option<Reservation> {
        if bytes > self.most {
            return None;
        }
        loop {
            let mut used = self.used();
            if *used + bytes <= self.most {
                *used += bytes;
                return Some(Reservation { budget: self.clone(), bytes });
            }
            drop(used);
            if !evict() {
                let used = self.used();
                drop(self.given.wait_timeout(used, LOOK));
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        *self.budget.used() -= self.bytes;
        self.budget.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_by_nobody_makes_room() {
        let budget = Budget::new(10);
        assert!(budget.take(11, || false).is_none());
        let first = Mutex::new(budget.take(6, || false));
        let second = budget.take(7, || first.lock().unwrap().take().is_some());
        assert!(second.is_some() && first.lock().unwrap().is_none());
        drop(second);
        assert!(budget.take(10, || false).is_some());
    }
}
