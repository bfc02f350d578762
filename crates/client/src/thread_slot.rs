//! What each thread that calls CUDA has: its mark at the barrier and its ring. Slots are never freed; one whose thread
//! has ended goes to the next thread that needs one.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_protocol::client::Uncollected;

use crate::abi::Result;
use crate::lane::Lane;

pub struct ThreadSlot {
    pub inside: AtomicBool,
    /// The last round of calls through the closed barrier in which its thread has made one, and how many.
    pub passed: AtomicU64,
    lane: UnsafeCell<Option<Lane>>,
}

// SAFETY: `lane` is touched only by the thread whose slot this is while it is inside the barrier, and by the control thread
// while the barrier is closed and nobody is inside.
unsafe impl Sync for ThreadSlot {}

struct ThreadSlots {
    all: Vec<&'static ThreadSlot>,
    free: Vec<&'static ThreadSlot>,
}

static SEATS: Mutex<ThreadSlots> = Mutex::new(ThreadSlots { all: Vec::new(), free: Vec::new() });

fn slots() -> MutexGuard<'static, ThreadSlots> {
    SEATS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn take() -> &'static ThreadSlot {
    let mut slots = slots();
    slots.free.pop().unwrap_or_else(|| {
        let slot: &'static ThreadSlot = Box::leak(Box::new(ThreadSlot {
            inside: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            lane: UnsafeCell::new(None),
        }));
        slots.all.push(slot);
        slot
    })
}

pub fn give_back(slot: &'static ThreadSlot) {
    slots().free.push(slot);
}

pub fn all() -> Vec<&'static ThreadSlot> {
    slots().all.clone()
}

impl ThreadSlot {
    /// The lane of the thread whose slot this is; made when it is first needed. Call inside the barrier only, and keep the
    /// borrow short: nothing that runs the program's code may happen within it.
    #[allow(clippy::mut_from_ref, reason = "the seat's rules make the access exclusive")]
    pub fn lane(&self) -> Result<&mut Lane> {
        // SAFETY: the slot is the caller's, who is inside the barrier (see `Sync` above).
        let lane = unsafe { &mut *self.lane.get() };
        if lane.is_none() {
            *lane = Some(Lane::create()?);
        }
        lane.as_mut().ok_or(rekindle_cuda::CUDA_ERROR_UNKNOWN)
    }

    /// What is on its way to the thread whose slot this is.
    pub fn uncollected(&self) -> Vec<Uncollected> {
        // SAFETY: the control thread calls this while the barrier is closed and nobody is inside.
        unsafe { &*self.lane.get() }.as_ref().map(Lane::uncollected).unwrap_or_default()
    }

    /// Reads the positions again from a ring file that is new.
    pub fn reload(&self) {
        // SAFETY: the control thread calls this while the barrier is closed and nobody is inside.
        if let Some(lane) = unsafe { &mut *self.lane.get() } {
            lane.reload();
        }
    }
}
