//! A few blocks of memory that the GPU knows, through which data of a worker comes to it that cannot be copied from where it is.
//!
//! To have the driver know a page brings it, and clears one that nobody has written yet, while the driver's other calls wait. So
//! it is done once, for few pages, when the first block is wanted, on a thread of its own: the first blocks are there while the
//! others are still made.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rekindle_cuda::{CUDA_ERROR_UNKNOWN, CuResult};
use rekindle_device::{Device, Result};

use super::errand::{PAUSE, Stop};
use crate::image::Registered;

/// A copy of so many bytes has nearly the rate of a longer one, and what is read into it is still in the processor's cache.
pub(super) const BLOCK: usize = 2 << 20;
/// So many are made known by one call.
const AT_ONCE: usize = 4;
/// How often that is done: each thread that pours has one block that it fills, and one that is copied.
const TIMES: usize = 3;

pub(crate) struct Basin {
    device: Arc<dyn Device>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    begun: bool,
    memory: Vec<Registered>,
    /// Where each block is that nobody has.
    free: Vec<u64>,
    /// How many the GPU may still read from, for it has failed.
    lost: usize,
    /// All are made that will be, or why not all.
    made: Option<Result<()>>,
}

/// A block that is somebody's, and is given back when this goes: no copy from it may be under way then.
pub(super) struct Block<'b> {
    basin: &'b Basin,
    address: u64,
}

impl Basin {
    pub(crate) fn new(device: Arc<dyn Device>) -> Arc<Basin> {
        Arc::new(Basin { device, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Begins to make the blocks, unless somebody has.
    fn begin(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state().begun, true) {
            return;
        }
        let own = self.clone();
        let made = std::thread::Builder::new().name("data-blocks".into()).spawn(move || own.make());
        if let Err(error) = made {
            log::error!("cannot start a thread: {error}");
            self.state().made = Some(Err(CUDA_ERROR_UNKNOWN));
        }
    }

    fn make(&self) {
        let made = (0..TIMES).try_for_each(|_| {
            let memory = Registered::new(self.device.clone(), BLOCK, AT_ONCE)?;
            let mut state = self.state();
            state.free.extend((0..AT_ONCE).map(|number| memory.address(number)));
            state.memory.push(memory);
            self.changed.notify_all();
            Ok(())
        });
        self.state().made = Some(made);
        self.changed.notify_all();
    }

    /// One that is there.
    pub(super) fn take_now(&self) -> Option<Block<'_>> {
        let address = self.state().free.pop()?;
        Some(Block { basin: self, address })
    }

    /// One, once there is one.
    pub(super) fn take(self: &Arc<Self>, stop: &Stop) -> Result<Block<'_>> {
        self.begin();
        let mut state = self.state();
        loop {
            if let Some(address) = state.free.pop() {
                return Ok(Block { basin: self, address });
            }
            if let Some(code) = state.hopeless() {
                return Err(code);
            }
            if stop.is_told() {
                return Err(CUDA_ERROR_UNKNOWN);
            }
            state = self.changed.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Why there will be none.
    fn hopeless(&self) -> Option<CuResult> {
        let made = self.made?;
        (self.lost == self.memory.len() * AT_ONCE).then(|| made.err().unwrap_or(CUDA_ERROR_UNKNOWN))
    }
}

impl Block<'_> {
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// The first bytes.
    pub(super) fn bytes(&mut self, count: usize) -> &mut [u8] {
        // SAFETY: the block is so long at least, is nobody else's, and stays mapped for as long as its basin is there.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, count.min(BLOCK)) }
    }

    /// The GPU may go on reading from it: nobody is given it any more.
    pub(super) fn lose(self) {
        self.basin.state().lost += 1;
        self.basin.changed.notify_all();
        std::mem::forget(self);
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        self.basin.state().free.push(self.address);
        self.basin.changed.notify_one();
    }
}
