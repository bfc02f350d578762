//! Who gets memory onto a GPU just now: beside that no worker is started, since a driver that makes a context lets others
//! wait. Those that are missing are started once nobody does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::WorkerPool;

/// Loads that follow one another put off a start for so long at most.
const MOST: Duration = Duration::from_secs(1);

/// After its memory is loaded a program has the GPU for itself: most likely it has its first answer to give. So long that takes at
/// least and at most, and in between as long as it took until there.
const FIRST_WORK: [Duration; 2] = [Duration::from_millis(30), Duration::from_millis(150)];

/// How many load, and since when somebody has.
#[derive(Default)]
pub(super) struct Loads {
    count: usize,
    since: Option<Instant>,
}

impl Loads {
    fn begin(&mut self, now: Instant) {
        self.count += 1;
        self.since.get_or_insert(now);
    }

    fn end(&mut self) {
        self.count -= 1;
        if self.count == 0 {
            self.since = None;
        }
    }

    /// Until when nothing is started beside them.
    pub(super) fn put_off(&self, now: Instant) -> Option<Instant> {
        self.since.map(|since| since + MOST).filter(|until| *until > now)
    }
}

/// A program is given its memory, as long as this is there.
pub struct Load {
    pool: Arc<WorkerPool>,
    began: Instant,
}

impl Load {
    /// Returns when its program has had time for an answer.
    pub fn wait_for_first_work(&self) {
        let [least, most] = FIRST_WORK;
        std::thread::sleep(self.began.elapsed().clamp(least, most));
    }

    /// Ends when its program has had time for an answer.
    pub fn end_later(self) {
        std::thread::spawn(move || self.wait_for_first_work());
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.pool.lock().loads.end();
        let pool = self.pool.clone();
        std::thread::spawn(move || pool.refill());
    }
}

impl WorkerPool {
    /// A program is about to take a worker and to have its memory loaded.
    pub fn begin_load(self: &Arc<WorkerPool>) -> Load {
        let began = Instant::now();
        self.lock().loads.begin(began);
        Load { pool: self.clone(), began }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_put_off_while_somebody_loads_and_for_a_second_at_most() {
        let began = Instant::now();
        let after = |milliseconds| began + Duration::from_millis(milliseconds);
        let mut loads = Loads::default();
        assert_eq!(loads.put_off(began), None);
        loads.begin(began);
        loads.begin(after(600));
        loads.end();
        assert_eq!(loads.put_off(after(700)), Some(after(1000)));
        assert_eq!(loads.put_off(after(1000)), None);
        loads.end();
        loads.begin(after(1200));
        assert_eq!(loads.put_off(after(1300)), Some(after(2200)));
        loads.end();
        assert_eq!(loads.put_off(after(1300)), None);
    }
}
