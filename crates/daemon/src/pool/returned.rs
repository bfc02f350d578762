//! Workers that have served a program and wait for another one of the same tenant.
//!
//! Their contexts are as they were before, so that a program that is restored finds what it needs. One that is started, or whose
//! code ties addresses to all that was loaded before, gets one that nobody had.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::room::{FreeMemory, Sight};
use super::{Waiting, WorkerPool};
use crate::host::gpu::have_in_common;
use crate::workers::Worker;

/// So long one waits for its next program at most.
const MOST: Duration = Duration::from_secs(30);

/// Whose programs may have a context one after the other: those of a tenant, and those that have none.
pub type Owner = Option<String>;

/// Whom a waiting worker has served.
pub(super) struct Former {
    owner: Owner,
    until: Instant,
}

impl Former {
    pub(super) fn is_of(&self, owner: &Owner) -> bool {
        self.owner == *owner
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }
}

impl WorkerPool {
    /// A worker that a sandbox has taken waits here when its program has ended.
    pub fn expect_back(self: &Arc<WorkerPool>, worker: &Arc<Worker>, gpu: &str, owner: Owner) {
        if self.is_off() || self.size.window.is_zero() || gpu.contains(',') {
            return;
        }
        let (pool, worker, gpu) = (Arc::downgrade(self), worker.clone(), gpu.to_string());
        let Ok((place, on_end)) = self.spares.place(self.on_end()) else { return };
        std::thread::spawn(move || match worker.await_return(place, on_end) {
            Ok(Some(worker)) => match pool.upgrade() {
                Some(pool) => pool.take_back(worker, (gpu, owner)),
                None => worker.shut_down(),
            },
            Ok(None) => {}
            Err(error) => log::debug!("a worker ends with its program: {error}"),
        });
    }

    fn take_back(self: &Arc<WorkerPool>, worker: Arc<Worker>, (gpu, owner): (String, Owner)) {
        let is_welcome = worker
            .status()
            .is_ok_and(|status| FreeMemory::of(&status).is_some_and(|memory| Sight::Free(memory).is_ample()));
        let is_taken = is_welcome && {
            let mut state = self.lock();
            let fits = state.waiting.len() < self.size.most
                && !state.closed
                && !state.holds.iter().any(|held| have_in_common(held, &gpu))
                && state.gpus.iter().any(|known| known.name == gpu && !known.gave_up)
                && worker.ended().is_none();
            if fits {
                worker.stay();
                let known = state.gpus.iter_mut().filter(|known| known.name == gpu);
                known.for_each(|known| known.demand.replaced());
                let until = Instant::now() + self.size.window.min(MOST);
                let former = Some(Former { owner, until });
                state.waiting.push(Waiting { gpu, worker: worker.clone(), ready: true, former });
                self.settle_at(&mut state, Some(until));
            }
            fits
        };
        match is_taken {
            true => self.acquaint(&worker),
            false => worker.shut_down(),
        }
    }
}
