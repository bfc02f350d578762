//! What the client keeps for each thread of the program.
//!
//! A thread's record is found through a plain thread-local pointer, freed by a pthread key's destructor: CUDA may be
//! called from destructors of other thread-locals, and then gets a new record.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::OnceLock;

use crate::context::Context;
use crate::fork;
use crate::thread_slot::{self, ThreadSlot};

pub struct Thread {
    /// Calls that this thread is inside of, one within the other.
    pub depth: Cell<u32>,
    slot: Cell<Option<&'static ThreadSlot>>,
    /// Contexts, the current one last; `None` where the program set no context.
    pub contexts: RefCell<Vec<Option<&'static Context>>>,
    /// `CUstreamCaptureMode`.
    pub capture_mode: Cell<u32>,
}

thread_local! {
    static CURRENT: Cell<*mut Thread> = const { Cell::new(ptr::null_mut()) };
}

/// The calling thread's record. It lives as long as the thread.
pub fn current() -> &'static Thread {
    let mut thread = CURRENT.get();
    if thread.is_null() {
        thread = Box::into_raw(Box::new(Thread {
            depth: Cell::new(0),
            slot: Cell::new(None),
            contexts: RefCell::new(Vec::new()),
            capture_mode: Cell::new(0),
        }));
        CURRENT.set(thread);
        if let Some(key) = key() {
            // SAFETY: the key was made by pthread_key_create and is never deleted.
            unsafe { libc::pthread_setspecific(key, thread.cast()) };
        }
    }
    // SAFETY: only this thread knows the pointer, and it is freed when the thread ends.
    unsafe { &*thread }
}

impl Thread {
    pub fn slot(&self) -> &'static ThreadSlot {
        self.slot.get().unwrap_or_else(|| {
            let slot = thread_slot::take();
            self.slot.set(Some(slot));
            slot
        })
    }
}

fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is a valid place, and the destructor has the right type.
        (unsafe { libc::pthread_key_create(&mut key, Some(end)) } == 0).then_some(key)
    })
}

extern "C" fn end(thread: *mut libc::c_void) {
    CURRENT.set(ptr::null_mut());
    if fork::is_child() {
        return;
    }
    // SAFETY: the pointer came from `Box::into_raw` in `current`, whose thread ends now.
    let thread = unsafe { Box::from_raw(thread.cast::<Thread>()) };
    if let Some(slot) = thread.slot.get() {
        thread_slot::give_back(slot);
    }
}
