//! How many may be at a door at once. Those who come when it is full wait before it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub struct Room {
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

/// One's stay.
pub struct Guest(Arc<Room>);

impl Room {
    pub fn new(most: u32) -> Room {
        Room { most, count: Mutex::default(), left: Condvar::new() }
    }

    /// Until there is room for one more, or the room is closed.
    pub fn wait(&self) {
        let is_full = |count: &mut Count| count.here >= self.most && !count.closed;
        drop(self.left.wait_while(self.lock(), is_full));
    }

    pub fn enter(self: &Arc<Room>) -> Guest {
        let mut count = self.lock();
        count.came += 1;
        count.here += 1;
        drop(count);
        Guest(self.clone())
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

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.lock().here -= 1;
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_to_a_full_room_waits_until_one_leaves_or_it_is_closed() {
        let room = Arc::new(Room::new(2));
        let (first, _second) = (room.enter(), room.enter());
        let waiting = |room: &Arc<Room>| {
            let room = room.clone();
            std::thread::spawn(move || room.wait())
        };
        let third = waiting(&room);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!third.is_finished());
        drop(first);
        third.join().unwrap();
        let third = room.enter();
        let fourth = waiting(&room);
        assert_eq!(room.settle(Duration::from_millis(1)), 3);
        room.close();
        fourth.join().unwrap();
        drop(third);
        assert_eq!(room.came(), 3);
    }
}
