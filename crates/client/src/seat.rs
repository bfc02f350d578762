//! Where a thread sits while it calls CUDA: its mark at the gate and its ring. Seats are never freed; one whose thread
//! has ended goes to the next thread that needs one.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_protocol::client::Uncollected;

use crate::abi::Result;
use crate::lane::Lane;

pub struct Seat {
    pub inside: AtomicBool,
    lane: UnsafeCell<Option<Lane>>,
}

// SAFETY: `lane` is touched only by the thread that sits here while it is inside the gate, and by the control thread
// while the gate is closed and nobody is inside.
unsafe impl Sync for Seat {}

struct Seats {
    all: Vec<&'static Seat>,
    free: Vec<&'static Seat>,
}

static SEATS: Mutex<Seats> = Mutex::new(Seats { all: Vec::new(), free: Vec::new() });

fn seats() -> MutexGuard<'static, Seats> {
    SEATS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn take() -> &'static Seat {
    let mut seats = seats();
    seats.free.pop().unwrap_or_else(|| {
        let seat: &'static Seat =
            Box::leak(Box::new(Seat { inside: AtomicBool::new(false), lane: UnsafeCell::new(None) }));
        seats.all.push(seat);
        seat
    })
}

pub fn give_back(seat: &'static Seat) {
    seats().free.push(seat);
}

pub fn all() -> Vec<&'static Seat> {
    seats().all.clone()
}

impl Seat {
    /// The lane of the thread that sits here; made when it is first needed. Call inside the gate only, and keep the
    /// borrow short: nothing that runs the program's code may happen within it.
    #[allow(clippy::mut_from_ref, reason = "the seat's rules make the access exclusive")]
    pub fn lane(&self) -> Result<&mut Lane> {
        // SAFETY: the caller sits here and is inside the gate (see `Sync` above).
        let lane = unsafe { &mut *self.lane.get() };
        if lane.is_none() {
            *lane = Some(Lane::create()?);
        }
        lane.as_mut().ok_or(rekindle_cuda::CUDA_ERROR_UNKNOWN)
    }

    /// What is on its way to the thread that sits here.
    pub fn uncollected(&self) -> Vec<Uncollected> {
        // SAFETY: the control thread calls this while the gate is closed and nobody is inside.
        unsafe { &*self.lane.get() }.as_ref().map(Lane::uncollected).unwrap_or_default()
    }

    /// Reads the positions again from a ring file that is new.
    pub fn reload(&self) {
        // SAFETY: the control thread calls this while the gate is closed and nobody is inside.
        if let Some(lane) = unsafe { &mut *self.lane.get() } {
            lane.reload();
        }
    }
}
