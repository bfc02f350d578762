//! Workers that have been told to end and are not gone yet: what they have of a GPU will be free.
//!
//! The driver needs up to seconds to give back tens of GB. Who finds too little memory in that time waits for it here.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest that they are waited for.
const LIMIT: Duration = Duration::from_secs(10);
/// How often it is looked how much is free: it comes back bit by bit.
const LOOK: Duration = Duration::from_millis(20);

static COUNT: Mutex<usize> = Mutex::new(0);
static GONE: Condvar = Condvar::new();

/// One that leaves, until this is dropped.
pub struct Leaving(());

impl Leaving {
    pub fn begin() -> Leaving {
        *COUNT.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Leaving(())
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        *COUNT.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        GONE.notify_all();
    }
}

/// Tries again while it is `short` of memory and workers are about to leave some. The last answer.
pub fn wait_while<T>(mut answer: T, short: impl Fn(&T) -> bool, mut again: impl FnMut() -> T) -> T {
    let began = Instant::now();
    while short(&answer) && began.elapsed() < LIMIT {
        let count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
        if *count == 0 {
            return answer;
        }
        drop(GONE.wait_timeout(count, LOOK).unwrap_or_else(PoisonError::into_inner));
        answer = again();
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_short_waits_for_those_that_leave_and_for_nobody_else() {
        let mut asked = 0;
        assert_eq!(wait_while(0, |free| *free < 3, || unreachable!("nobody leaves")), 0);
        let leaving = Leaving::begin();
        let found = wait_while(
            0,
            |free| *free < 3,
            || {
                asked += 1;
                asked
            },
        );
        assert_eq!((found, asked), (3, 3));
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(leaving);
        });
        // What has gone has left nothing: it is looked once more, and that is all.
        assert_eq!(wait_while(0, |free| *free < 3, || 1), 1);
    }
}
