//! The barrier that every CUDA call which may reach the worker passes. A checkpoint closes it: threads about to enter wait
//! outside, calls that are inside finish.
//!
//! Each thread says in its own [`ThreadSlot`] that it is inside, then looks whether the barrier is closed; the control thread
//! closes the barrier, then looks at every slot. Both put a full fence between: one of them sees the other.
//!
//! Kernels of another process may wait for some that a thread which waits outside has not launched yet. Then a round of calls is
//! let through the closed barrier: so many of each thread, until the round is over.
//!
//! While the GPU half sleeps the barrier is closed too, and the first thread that comes to it asks the daemon to wake it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::abi::Result;
use crate::thread::{self, Thread};
use crate::thread_slot::{self, ThreadSlot};
use crate::wake_request::WakeRequester;

static CLOSED: AtomicBool = AtomicBool::new(false);
static ASLEEP: AtomicBool = AtomicBool::new(false);
/// A thread sees to it that the GPU half is woken.
static KNOCKING: AtomicBool = AtomicBool::new(false);
/// How many threads wait.
static WAITING: Mutex<usize> = Mutex::new(0);
/// The round of calls that are let through, and how many of each thread: the upper and the lower half. None once it is over.
static ROUND: AtomicU64 = AtomicU64::new(0);
/// Threads that have waited when the round began, and have made no call since.
static EXPECTED: AtomicUsize = AtomicUsize::new(0);
static OPENED: Condvar = Condvar::new();

const CALLS: u64 = u32::MAX as u64;

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
        if !CLOSED.load(Ordering::Relaxed) || may_pass(slot, true) {
            return;
        }
        slot.inside.store(false, Ordering::Release);
        wait(slot);
    }
}

/// Whether the thread of this slot has a call left in this round; `takes`: it makes it.
fn may_pass(slot: &ThreadSlot, takes: bool) -> bool {
    let (round, passed) = (ROUND.load(Ordering::Relaxed), slot.passed.load(Ordering::Relaxed));
    let made = if passed >> 32 == round >> 32 { passed & CALLS } else { 0 };
    let may = made < round & CALLS;
    if may && takes {
        slot.passed.store((round & !CALLS) | (made + 1), Ordering::Relaxed);
        if made == 0 {
            let _ = EXPECTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        }
    }
    may
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
fn wait(slot: &ThreadSlot) {
    let mut held = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    *held += 1;
    while CLOSED.load(Ordering::Relaxed) && !may_pass(slot, false) {
        if ASLEEP.load(Ordering::Relaxed) && !KNOCKING.swap(true, Ordering::Relaxed) {
            held = wake(held);
            KNOCKING.store(false, Ordering::Relaxed);
            continue;
        }
        held = OPENED.wait(held).unwrap_or_else(PoisonError::into_inner);
    }
    *held -= 1;
}

/// Knocks until the GPU half is awake.
fn wake(mut held: MutexGuard<'static, usize>) -> MutexGuard<'static, usize> {
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

/// Lets each thread make so many calls more though the barrier is closed.
pub fn begin_round(calls: u32) {
    let held = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    EXPECTED.store(*held, Ordering::Relaxed);
    let round = (ROUND.load(Ordering::Relaxed) >> 32) + 1;
    ROUND.store(round << 32 | u64::from(calls), Ordering::Relaxed);
    drop(held);
    OPENED.notify_all();
}

/// Whether all threads that waited when the round began have come in since.
pub fn have_all_passed() -> bool {
    EXPECTED.load(Ordering::Relaxed) == 0
}

/// Lets nobody in again.
pub fn end_round() {
    ROUND.store(ROUND.load(Ordering::Relaxed) & !CALLS, Ordering::Relaxed);
    fence(Ordering::SeqCst);
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
    fn nobody_is_inside_a_closed_barrier_but_for_rounds_of_calls_and_everybody_goes_on() {
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
            for calls in [1, 3] {
                let before = STEPS.load(Ordering::Relaxed);
                begin_round(calls);
                while STEPS.load(Ordering::Relaxed) < before + 4 * u64::from(calls) {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_micros(300));
                assert!(have_all_passed());
                end_round();
                assert_eq!((inside(), STEPS.load(Ordering::Relaxed)), (0, before + 4 * u64::from(calls)));
            }
            begin_round(1000);
            end_round();
            while inside() != 0 {
                std::thread::yield_now();
            }
            let before = STEPS.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(300));
            assert_eq!(STEPS.load(Ordering::Relaxed), before, "a round that is over lets nobody in");
            open();
        }
        STOP.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(inside(), 0);
    }
}
