//! Waiting on a word of shared memory. Under loom, a condition variable.

use std::time::Duration;

use crate::atomic::AtomicU32;

/// Sleeps until `word` is woken, no longer holds `value`, or `limit` has passed.
#[cfg(not(loom))]
pub(crate) fn wait(word: &AtomicU32, value: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word lives as long as the borrow, and the kernel only reads it; every outcome means "look again".
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &limit) };
}

#[cfg(not(loom))]
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: waking touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(loom)]
loom::lazy_static! {
    /// Stands for the kernel's queues: comparing and falling asleep is one step with respect to a wake.
    static ref QUEUE: (loom::sync::Mutex<()>, loom::sync::Condvar) = (loom::sync::Mutex::new(()), loom::sync::Condvar::new());
}

/// Never times out, so that a lost wake-up is a deadlock, which loom reports.
#[cfg(loom)]
pub(crate) fn wait(word: &AtomicU32, value: u32, _limit: Duration) {
    let held = QUEUE.0.lock().unwrap();
    if word.load(crate::atomic::Ordering::SeqCst) == value {
        drop(QUEUE.1.wait(held).unwrap());
    }
}

#[cfg(loom)]
pub(crate) fn wake(_word: &AtomicU32) {
    let _held = QUEUE.0.lock().unwrap();
    QUEUE.1.notify_all();
}
