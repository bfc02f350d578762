//! The barrier that every CUDA call which may reach the worker passes. A checkpoint closes it: threads about to enter wait
//! outside, calls that are inside finish.
//!
//! Each thread says in its own [`ThreadSlot`] that it is inside, then looks whether the barrier is closed; the control thread
//! closes the barrier, then looks at every slot. Both put a full fence between: one of them sees the other.
//!
//! While the GPU half sleeps the barrier is closed too, and the first thread that comes to it asks the daemon to wake it.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::abi::Result;
use crate::thread::{self, Thread};
use crate::thread_slot::{self, ThreadSlot};
use crate::wake_request::WakeRequester;

static CLOSED: AtomicBool = AtomicBool::new(false);
static ASLEEP: AtomicBool = AtomicBool::new(false);
/// A thread sees to it that the GPU half is woken.
static KNOCKING: AtomicBool = AtomicBool::new(false);
static WAITING: Mutex<()> = Mutex::new(());
static OPENED: Condvar = Condvar::new();

/// A thread's stay inside. Calls that a call makes (through a function of the program's) stay inside with it.
pub struct CallGuard {
    thread: &'static Thread,
    slot: &'static ThreadSlot,
}

pub fn enter() -> Result<CallGuard> {
    let thread = thread::current();
    let slot = thread.slot();
    let depth = thread.depth.get();
    if depth == 0 {
        come_in(slot);
    }
    thread.depth.set(depth + 1);
    Ok(CallGuard { thread, slot })
}

/// Whether the calling thread, which is inside, may step outside while it waits: no other call of its is under way.
pub fn may_step_outside() -> bool {
    thread::current().depth.get() == 1
}

/// Whether the calling thread is inside.
pub fn is_inside() -> bool {
    thread::current().depth.get() > 0
}

/// Whether the barrier is closed, or about to be.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Lets whoever closes the barrier do so, and comes in again when it is open.
pub fn step_outside() {
    let slot = thread::current().slot();
    slot.inside.store(false, Ordering::Release);
    come_in(slot);
}

/// Waits while the barrier is closed.
fn come_in(slot: &ThreadSlot) {
    loop {
        slot.inside.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !CLOSED.load(Ordering::Relaxed) {
            return;
        }
        slot.inside.store(false, Ordering::Release);
        wait();
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let depth = self.thread.depth.get() - 1;
        self.thread.depth.set(depth);
        if depth == 0 {
            self.slot.inside.store(false, Ordering::Release);
        }
    }
}

#[cold]
fn wait() {
    let mut held = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    while CLOSED.load(Ordering::Relaxed) {
        if ASLEEP.load(Ordering::Relaxed) && !KNOCKING.swap(true, Ordering::Relaxed) {
            held = wake(held);
            KNOCKING.store(false, Ordering::Relaxed);
            continue;
        }
        held = OPENED.wait(held).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Knocks until the GPU half is awake.
fn wake(mut held: MutexGuard<'static, ()>) -> MutexGuard<'static, ()> {
    let mut knocker = WakeRequester::default();
    while CLOSED.load(Ordering::Relaxed) && ASLEEP.load(Ordering::Relaxed) {
        drop(held);
        let pause = knocker.knock();
        held = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if CLOSED.load(Ordering::Relaxed) {
            held = OPENED.wait_timeout(held, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    held
}

/// The GPU half sleeps: whoever waits or comes is to wake it.
pub fn sleep() {
    let held = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    ASLEEP.store(true, Ordering::Relaxed);
    drop(held);
    OPENED.notify_all();
}

/// Lets nobody in from now on.
pub fn close() {
    CLOSED.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

pub fn open() {
    let held = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    CLOSED.store(false, Ordering::Relaxed);
    ASLEEP.store(false, Ordering::Relaxed);
    drop(held);
    OPENED.notify_all();
}

/// How many threads are inside.
pub fn inside() -> usize {
    thread_slot::all().iter().filter(|slot| slot.inside.load(Ordering::Acquire)).count()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;

    #[test]
    fn nobody_is_inside_a_closed_barrier_and_everybody_goes_on() {
        static STOP: AtomicBool = AtomicBool::new(false);
        static STEPS: AtomicU64 = AtomicU64::new(0);
        let step = || {
            while !STOP.load(Ordering::Relaxed) {
                let _outer = enter().unwrap();
                // A call within a call does not wait for the barrier: it would never be let in.
                let _inner = enter().unwrap();
                STEPS.fetch_add(1, Ordering::Relaxed);
            }
        };
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(step)).collect();
        for _ in 0..50 {
            std::thread::sleep(Duration::from_micros(300));
            close();
            while inside() != 0 {
                std::thread::yield_now();
            }
            let before = STEPS.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(300));
            assert_eq!(STEPS.load(Ordering::Relaxed), before);
            open();
        }
        STOP.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(inside(), 0);
    }
}
