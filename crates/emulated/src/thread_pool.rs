//! Threads that help with the blocks of large grids.
//!
//! Whoever runs a kernel offers its grid and works on it at once; a helper that wakes in time joins, one that wakes
//! too late finds nothing and nobody waits for it. So a small kernel never pays for threads that it does not need.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rekindle_ptx::{Fault, Grid, Host};

/// Why a grid did not run to its end.
pub(crate) enum Stop {
    Fault(Fault),
    /// The interpreter itself failed on one of the threads.
    Panic,
}

/// A grid that helpers may join.
struct Offer {
    grid: Grid,
    host: Arc<dyn Host + Send>,
    joined: Mutex<Joined>,
    left: Condvar,
}

#[derive(Default)]
struct Joined {
    /// Helpers that are at work on it.
    active: usize,
    stop: Option<Stop>,
}

#[derive(Default)]
struct State {
    offers: VecDeque<Arc<Offer>>,
    idle: usize,
    stopping: bool,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

pub(crate) struct ThreadPool {
    shared: Arc<Shared>,
    most: usize,
}

impl ThreadPool {
    /// `threads` work on a kernel that runs alone: its runner and the helpers.
    pub fn new(threads: usize) -> ThreadPool {
        ThreadPool { shared: Arc::default(), most: threads.saturating_sub(1) }
    }

    /// Runs a grid of `blocks` blocks to its end or its first fault.
    pub fn run(&self, grid: Grid, host: Arc<dyn Host + Send>, blocks: u64) -> Result<(), Stop> {
        let wanted = usize::try_from(blocks - 1).unwrap_or(usize::MAX).min(self.most);
        let offer = Arc::new(Offer { grid, host, joined: Mutex::default(), left: Condvar::new() });
        if wanted == 0 {
            return offer.work();
        }
        self.offer(&offer, wanted);
        let own = offer.work();
        self.shared.state.lock().offers.retain(|other| !Arc::ptr_eq(other, &offer));
        let mut joined = offer.joined.lock();
        while joined.active > 0 {
            offer.left.wait(&mut joined);
        }
        own.and(joined.stop.take().map_or(Ok(()), Err))
    }

    fn offer(&self, offer: &Arc<Offer>, wanted: usize) {
        let mut state = self.shared.state.lock();
        state.offers.push_back(Arc::clone(offer));
        let missing = wanted.saturating_sub(state.idle).min(self.most - state.threads.len());
        for _ in 0..missing {
            let shared = Arc::clone(&self.shared);
            match std::thread::Builder::new().name("gpu-helper".to_owned()).spawn(move || shared.help()) {
                Ok(thread) => state.threads.push(thread),
                // The kernel runs without help.
                Err(error) => log::warn!("no helper thread for a kernel: {error}"),
            }
        }
        drop(state);
        for _ in 0..wanted {
            self.shared.wake.notify_one();
        }
    }
}

impl Offer {
    fn work(&self) -> Result<(), Stop> {
        let run = std::panic::AssertUnwindSafe(|| self.grid.run(&*self.host, 1));
        match std::panic::catch_unwind(run) {
            Ok(done) => done.map_err(Stop::Fault),
            Err(_) => Err(Stop::Panic),
        }
    }
}

impl Shared {
    /// The life of a helper.
    fn help(&self) {
        rekindle_parallel::go_as_usual();
        let mut state = self.state.lock();
        while !state.stopping {
            let Some(offer) = state.offers.front().cloned() else {
                state.idle += 1;
                self.wake.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            // While the offer stands its runner has not begun to wait.
            offer.joined.lock().active += 1;
            drop(state);
            let done = offer.work();
            // A helper leaves a grid when no block of it is left to take.
            state = self.state.lock();
            state.offers.retain(|other| !Arc::ptr_eq(other, &offer));
            let mut joined = offer.joined.lock();
            joined.active -= 1;
            if let Err(stop) = done {
                joined.stop = Some(stop);
            }
            offer.left.notify_all();
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.wake.notify_all();
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a helper thread of the emulated GPU ended by a panic");
            }
        }
    }
}
