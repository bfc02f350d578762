//! How many may be connected to a socket at once. Those who come when that many are wait to be accepted.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub struct ConnectionLimit {
    most: u32,
    count: Mutex<Count>,
    left: Condvar,
}

#[derive(Default)]
struct Count {
    /// In all.
    came: u64,
    here: u32,
    closed: bool,
}

/// One connection, for as long as it lasts.
pub struct ConnectionSlot(Arc<ConnectionLimit>);

impl ConnectionLimit {
    pub fn new(most: u32) -> ConnectionLimit {
        ConnectionLimit { most, count: Mutex::default(), left: Condvar::new() }
    }

    /// Until one more may be accepted, or the socket is closed.
    pub fn wait(&self) {
        let is_full = |count: &mut Count| count.here >= self.most && !count.closed;
        drop(self.left.wait_while(self.lock(), is_full));
    }

    pub fn enter(self: &Arc<ConnectionLimit>) -> ConnectionSlot {
        let mut count = self.lock();
        count.came += 1;
        count.here += 1;
        drop(count);
        ConnectionSlot(self.clone())
    }

    /// Waits until nobody is here, for so long; says how many have come.
    pub fn settle(&self, limit: Duration) -> u64 {
        let waited = self.left.wait_timeout_while(self.lock(), limit, |count| count.here > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.came
    }

    /// How many have come.
    pub fn came(&self) -> u64 {
        self.lock().came
    }

    /// Nobody waits any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.left.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.lock().here -= 1;
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_when_it_is_full_waits_until_one_leaves_or_it_is_closed() {
        let limit = Arc::new(ConnectionLimit::new(2));
        let (first, _second) = (limit.enter(), limit.enter());
        let waiting = |limit: &Arc<ConnectionLimit>| {
            let limit = limit.clone();
            std::thread::spawn(move || limit.wait())
        };
        let third = waiting(&limit);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!third.is_finished());
        drop(first);
        third.join().unwrap();
        let third = limit.enter();
        let fourth = waiting(&limit);
        assert_eq!(limit.settle(Duration::from_millis(1)), 3);
        limit.close();
        fourth.join().unwrap();
        drop(third);
        assert_eq!(limit.came(), 3);
    }
}
