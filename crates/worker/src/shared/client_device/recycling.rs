//! Memory of one client's first uses, from the context's [pool](crate::shared::memory_pool) and back to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_device::{Device, Memory, Result};

use super::ClientDevice;
use crate::demand::Demand;

/// A client's place at the pool.
pub(crate) struct Recycling {
    user: u64,
    /// What it needs.
    pub demand: Arc<Demand>,
    /// First uses that found memory, and those for which it was made.
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Recycling {
    /// Hits and misses.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
}

impl ClientDevice {
    /// From now on memory for first uses comes from there, and goes there.
    pub(crate) fn recycle(&self) -> Result<()> {
        let (user, demand) = self.pool.join()?;
        let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
        let _ = self.recycling.set(Recycling { user, demand, hits, misses });
        Ok(())
    }

    /// Bytes that all of the context's clients can be given.
    pub(crate) fn pool_bytes(&self) -> u64 {
        self.pool.bytes()
    }

    /// Bytes that pools of other workers can give.
    pub(crate) fn pool_bytes_elsewhere(&self) -> u64 {
        self.pool.bytes_elsewhere()
    }

    /// Has the GPU get what the pool has, or what pools of other workers have; false if that is nothing.
    pub(crate) fn pool_gives_way(&self) -> bool {
        self.pool.give_way()
    }

    pub(crate) fn recycling(&self) -> Option<&Recycling> {
        self.recycling.get()
    }

    /// Memory for a first use. What it holds is nothing in particular, and may be what a program of the same tenant has left there.
    pub(crate) fn memory_for_use(&self, bytes: u64) -> Result<Memory> {
        let Some(recycling) = self.recycling.get() else { return self.memory_create(bytes) };
        let open = self.open()?;
        if let Some(memory) = self.pool.take(bytes) {
            self.owned().memory.insert(memory);
            recycling.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(memory);
        }
        drop(open);
        recycling.misses.fetch_add(1, Ordering::Relaxed);
        self.memory_create(bytes)
    }

    /// Has others take memory that no work uses any more, while it stays mapped here. False if that cannot be: others may have it
    /// already.
    pub(crate) fn pass_on(&self, at: u64, bytes: u64, memory: Memory) -> bool {
        let Some(recycling) = self.recycling.get() else { return false };
        let Ok(_open) = self.open() else { return false };
        let mut owned = self.owned();
        if owned.exported.contains(&memory) || !owned.memory.remove(&memory) {
            return false;
        }
        owned.passed_on.insert(at);
        drop(owned);
        self.kept().memory.remove(&memory);
        self.pool.put(bytes, memory, (recycling.user, at));
        true
    }

    /// Takes back what was passed on; false if somebody has taken it.
    pub(crate) fn take_back(&self, at: u64, bytes: u64, memory: Memory) -> bool {
        let Some(recycling) = self.recycling.get() else { return false };
        let is_back = self.pool.take_back(bytes, memory, (recycling.user, at));
        if is_back {
            let mut owned = self.owned();
            owned.passed_on.remove(&at);
            owned.memory.insert(memory);
        }
        is_back
    }

    /// Unmaps what was passed on.
    pub(crate) fn unmap_passed_on(&self, at: u64, bytes: u64) -> Result<()> {
        let Some(recycling) = self.recycling.get() else { return Ok(()) };
        self.pool.unmap((recycling.user, at), |is_mapped| {
            let mut owned = self.owned();
            owned.passed_on.remove(&at);
            if is_mapped {
                drop(owned);
                return self.unmap(at, bytes);
            }
            owned.mapped.remove(&at);
            Ok(())
        })
    }

    /// Unmaps all that was passed on. No call of the client's begins any more.
    pub(super) fn end_recycling(&self) {
        let Some(recycling) = self.recycling.get() else { return };
        recycling.demand.end();
        let passed_on = std::mem::take(&mut self.owned().passed_on);
        for at in passed_on {
            self.pool.unmap((recycling.user, at), |is_mapped| {
                let Some(bytes) = self.owned().mapped.remove(&at) else { return };
                let unmapped = if is_mapped { self.device.unmap(at, bytes) } else { Ok(()) };
                if let Err(code) = unmapped {
                    log::warn!("what a client has passed on stays mapped: {code}");
                }
            });
        }
    }

    /// Tries again without the pools' memory, where there is too little.
    pub(super) fn with_idle_memory<T>(&self, make: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            match make() {
                Err(CUDA_ERROR_OUT_OF_MEMORY) if self.pool_gives_way() => {}
                made => return made,
            }
        }
    }
}
