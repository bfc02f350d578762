//! Memory of a context that is ready for first uses: what its clients have freed, and what was made ahead for them.
//!
//! ```text
//!   freed, still mapped ──put──▶ ┌─────────────┐ ──take──▶ a first use of any client
//!   made ahead ────────────────▶ │ idle memory │
//!                                └──────┬──────┘ every T/2: no more than algorithm 1 says, and than leaves others the margin;
//!                                       ▼        all of it for whoever lacks memory, in any worker of the GPU
//!                                    the GPU
//! ```
//!
//! Memory that its last user still has mapped can be taken by another one at once: no work uses it any more, and the driver, which
//! waits for all of the GPU's work when memory is unmapped, is not asked to. It goes back to the GPU when it is mapped nowhere, or
//! when somebody lacks memory. T is how long 200 MB take to be made and given back, as in StreamBox, section 5.2.

mod idle;
mod size;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rekindle_cuda::CUDA_ERROR_OPERATING_SYSTEM;
use rekindle_device::{Device, Memory, Result};

use super::health::Health;
use crate::demand::Demand;
use crate::pressure::Pressure;
use idle::{IdleMemory, Mapping, Surplus};

/// Somebody has lacked memory: none is made ahead for so long.
const WITHHELD: Duration = Duration::from_millis(100);
/// As [`WITHHELD`], where that was another worker: it may have much to allocate.
const WITHHELD_FOR_OTHERS: Duration = Duration::from_secs(1);

pub(crate) struct MemoryPool {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<dyn Device>,
    health: Arc<Health>,
    /// Pools of other workers of the GPU; none where nobody is to know of this one.
    pressure: Option<Arc<Pressure>>,
    state: Mutex<State>,
    wake: Condvar,
    /// Held by whoever unmaps what was passed on, or has memory come and go.
    unmapping: Mutex<()>,
}

#[derive(Default)]
struct State {
    memory: IdleMemory,
    demands: Vec<Weak<Demand>>,
    last_user: u64,
    withheld_until: Option<Instant>,
    /// When what is mapped last went because others had little.
    unmapped_for_margin: Option<Instant>,
    /// Bytes that were given back to the GPU.
    given_back: u64,
    is_over: bool,
}

impl MemoryPool {
    pub(super) fn new(
        device: Arc<dyn Device>,
        health: Arc<Health>,
        pressure: Option<Arc<Pressure>>,
    ) -> Arc<MemoryPool> {
        let (state, wake, unmapping) = (Mutex::default(), Condvar::new(), Mutex::default());
        Arc::new(MemoryPool { shared: Arc::new(Shared { device, health, pressure, state, wake, unmapping }) })
    }

    /// A user, by its number, and what it tells of its needs. With the first one the pool's threads begin.
    pub(super) fn join(&self) -> Result<(u64, Arc<Demand>)> {
        let shared = Arc::downgrade(&self.shared);
        let wake = move || {
            if let Some(shared) = shared.upgrade() {
                drop(shared.state());
                shared.wake.notify_all();
            }
        };
        let demand = Arc::new(Demand::new(wake));
        let mut state = self.shared.state();
        state.demands.retain(|demand| demand.strong_count() > 0);
        state.demands.push(Arc::downgrade(&demand));
        if state.last_user == 0 {
            self.begin(&mut state).map_err(|error| {
                log::error!("the memory pool's thread cannot be started: {error}");
                CUDA_ERROR_OPERATING_SYSTEM
            })?;
        }
        state.last_user += 1;
        Ok((state.last_user, demand))
    }

    fn begin(&self, state: &mut State) -> std::io::Result<()> {
        let shared = self.shared.clone();
        std::thread::Builder::new().name("memory pool".into()).spawn(move || shared.run())?;
        let Some(pressure) = self.shared.pressure.clone().filter(|pressure| pressure.join()) else {
            return Ok(());
        };
        let (shared, served) = (Arc::downgrade(&self.shared), pressure.clone());
        let serve = move || served.serve(|is_asked| give_others(&shared, is_asked));
        std::thread::Builder::new().name("memory pressure".into()).spawn(serve)?;
        state.memory.told = Some(pressure);
        Ok(())
    }

    /// Memory of exactly so many bytes, if there is some.
    pub(super) fn take(&self, bytes: u64) -> Option<Memory> {
        self.shared.state().memory.take(bytes)
    }

    /// Memory that nobody's work uses any more, and that this user has mapped there.
    pub(super) fn put(&self, bytes: u64, memory: Memory, by: (u64, u64)) {
        let mut state = self.shared.state();
        let was_empty = state.memory.bytes() == 0;
        state.memory.put_mapped(by, Mapping { bytes, memory });
        drop(state);
        // Whether others have enough is looked at from here on.
        if was_empty {
            self.shared.wake.notify_all();
        }
    }

    /// Takes back what this user has put there; false if somebody has taken it.
    pub(super) fn take_back(&self, bytes: u64, memory: Memory, by: (u64, u64)) -> bool {
        self.shared.state().memory.take_back(by, Mapping { bytes, memory })
    }

    /// A user unmaps what it has passed on, as `unmap` does unless it was unmapped here.
    pub(super) fn unmap<T>(&self, by: (u64, u64), unmap: impl FnOnce(bool) -> T) -> T {
        let _turn = self.shared.turn();
        let is_mapped = self.shared.state().memory.is_mapped(by);
        let done = unmap(is_mapped);
        self.shared.state().memory.forget_mapping(by);
        self.shared.wake.notify_all();
        done
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.shared.state().memory.bytes()
    }

    /// Bytes that pools of other workers have.
    pub(crate) fn bytes_elsewhere(&self) -> u64 {
        self.shared.pressure.as_ref().map_or(0, |pressure| pressure.elsewhere())
    }

    /// Somebody of this process lacks memory: gives the GPU back what is mapped nowhere; if there is none, what users have passed
    /// on, for which the driver waits for all of the GPU's work; and if there is none, has pools of other workers do so. False if
    /// there was nothing.
    pub(crate) fn give_way(&self) -> bool {
        self.shared.give_way(WITHHELD) > 0
            || self.shared.pressure.as_ref().is_some_and(|pressure| pressure.ask())
    }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.wake.notify_all();
    }
}

impl State {
    /// Somebody has lacked memory just now.
    fn is_withheld(&self) -> bool {
        self.withheld_until.is_some_and(|until| Instant::now() < until)
    }

    fn is_under_way(&self) -> bool {
        self.demands.iter().any(|demand| demand.upgrade().is_some_and(|demand| demand.is_under_way()))
    }

    fn has_work(&self) -> bool {
        self.memory.bytes() > 0 || self.is_under_way()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the GPU back what is mapped nowhere, or else what is mapped, and has none made for so long: how many bytes went since
    /// this was called.
    fn give_way(&self, withheld: Duration) -> u64 {
        let before = {
            let mut state = self.state();
            let until = Instant::now() + withheld;
            state.withheld_until = Some(state.withheld_until.map_or(until, |known| known.max(until)));
            state.given_back
        };
        // What is just being made is given back with the rest, and what is being given back is waited for.
        let turn = self.turn();
        let surplus = self.state().memory.surplus(0, &BTreeMap::new());
        self.release(&surplus);
        drop(turn);
        if self.state().given_back == before {
            self.unmap_all();
        }
        self.state().given_back - before
    }

    /// Unmaps what was passed on, and gives the GPU what nobody has taken of it.
    fn unmap_all(&self) {
        let _turn = self.turn();
        if self.health.fault().is_some() {
            return;
        }
        let mut state = self.state();
        let mapped = state.memory.mappings();
        // Nobody can take it back from here on.
        let idle = state.memory.take_all();
        drop(state);
        for (by, mapping) in &mapped {
            if let Err(code) = self.device.unmap(by.1, mapping.bytes) {
                log::warn!("what a program has freed stays mapped: {code}");
                break;
            }
            self.state().memory.forget_mapping(*by);
        }
        self.release(&idle);
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.unmapping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, memory: &Surplus) {
        if self.health.fault().is_some() {
            return;
        }
        for (_, memory) in memory {
            if let Err(code) = self.device.memory_release(*memory) {
                log::warn!("memory of the pool stays in use: {code}");
            }
        }
        self.state().given_back += memory.iter().map(|(bytes, _)| bytes).sum::<u64>();
    }
}

/// Another worker may lack memory: bytes that went, none once the pool is no more.
fn give_others(shared: &Weak<Shared>, is_asked: bool) -> Option<u64> {
    let shared = shared.upgrade()?;
    if shared.state().is_over || shared.health.fault().is_some() || shared.device.bind().is_err() {
        return None;
    }
    if !is_asked {
        return Some(0);
    }
    let given = shared.give_way(WITHHELD_FOR_OTHERS);
    log::debug!("{} MB of the memory pool are given to another worker", given >> 20);
    Some(given)
}
