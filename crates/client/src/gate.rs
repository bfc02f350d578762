//! The gate that every CUDA call which may reach the worker passes. A checkpoint closes it: threads about to enter wait
//! outside, calls that are inside finish.
//!
//! Each thread says in its own [`Seat`] that it is inside, then looks whether the gate is closed; the control thread
//! closes the gate, then looks at every seat. Both put a full fence between: one of them sees the other.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::abi::Result;
use crate::seat::{self, Seat};
use crate::thread::{self, Thread};

static CLOSED: AtomicBool = AtomicBool::new(false);
static WAITING: Mutex<()> = Mutex::new(());
static OPENED: Condvar = Condvar::new();

/// A thread's stay inside. Calls that a call makes (through a function of the program's) stay inside with it.
pub struct Inside {
    thread: &'static Thread,
    seat: &'static Seat,
}

pub fn enter() -> Result<Inside> {
    let thread = thread::current();
    let seat = thread.seat();
    let depth = thread.depth.get();
    if depth == 0 {
        loop {
            seat.inside.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !CLOSED.load(Ordering::Relaxed) {
                break;
            }
            seat.inside.store(false, Ordering::Release);
            wait();
        }
    }
    thread.depth.set(depth + 1);
    Ok(Inside { thread, seat })
}

impl Drop for Inside {
    fn drop(&mut self) {
        let depth = self.thread.depth.get() - 1;
        self.thread.depth.set(depth);
        if depth == 0 {
            self.seat.inside.store(false, Ordering::Release);
        }
    }
}

#[cold]
fn wait() {
    let mut held = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    while CLOSED.load(Ordering::Relaxed) {
        held = OPENED.wait(held).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Lets nobody in from now on.
pub fn close() {
    CLOSED.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

pub fn open() {
    let held = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    CLOSED.store(false, Ordering::Relaxed);
    drop(held);
    OPENED.notify_all();
}

/// How many threads are inside.
pub fn inside() -> usize {
    seat::all().iter().filter(|seat| seat.inside.load(Ordering::Acquire)).count()
}
