//! Memory of a context that is ready for first uses: what its clients have freed, and what was made ahead for them.
//!
//! ```text
//!   freed, still mapped ──put──▶ ┌─────────────┐ ──take──▶ a first use of any client
//!   made ahead ────────────────▶ │ idle memory │
//!                                └──────┬──────┘ every T/2: no more than algorithm 1 says, and never what is mapped
//!                                       ▼
//!                                    the GPU
//! ```
//!
//! Memory that its last user still has mapped can be taken by another one at once: no work uses it any more, and the driver, which
//! waits for all of the GPU's work when memory is unmapped, is not asked to. It goes back to the GPU when it is mapped nowhere, or
//! when somebody lacks memory. T is how long 200 MB take to be made and given back, as in StreamBox, section 5.2.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rekindle_cuda::CUDA_ERROR_OPERATING_SYSTEM;
use rekindle_device::{Device, Memory, Result};

use super::health::Health;
use crate::demand::{Demand, ready_bytes};

/// So much is made and given back to measure the interval; less on a small GPU.
const MEASURED: u64 = 200 << 20;
/// The interval is at least this, however fast memory is made, and at most.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));
/// Somebody has lacked memory: none is made ahead for so long.
const WITHHELD: Duration = Duration::from_millis(100);
/// This part of the GPU's memory is left to others: nothing is made ahead of it.
const LEFT_FREE: u64 = 16;

pub(crate) struct MemoryPool {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<dyn Device>,
    health: Arc<Health>,
    state: Mutex<State>,
    wake: Condvar,
    /// Held by whoever unmaps what was passed on, or has memory come and go.
    unmapping: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// By bytes.
    idle: BTreeMap<u64, Vec<Memory>>,
    idle_bytes: u64,
    /// Where memory that was passed on is still mapped, by who did that and where.
    mapped: BTreeMap<(u64, u64), Mapping>,
    demands: Vec<Weak<Demand>>,
    last_user: u64,
    withheld_until: Option<Instant>,
    /// So many pieces were given back to the GPU.
    given_back: u64,
    is_over: bool,
}

#[derive(Clone, Copy)]
struct Mapping {
    bytes: u64,
    memory: Memory,
}

impl MemoryPool {
    pub(super) fn new(device: Arc<dyn Device>, health: Arc<Health>) -> Arc<MemoryPool> {
        let (state, wake, unmapping) = (Mutex::default(), Condvar::new(), Mutex::default());
        Arc::new(MemoryPool { shared: Arc::new(Shared { device, health, state, wake, unmapping }) })
    }

    /// A user, by its number, and what it tells of its needs. With the first one the pool's thread begins.
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
            let thread = self.shared.clone();
            let begun = std::thread::Builder::new().name("memory pool".into()).spawn(move || thread.run());
            begun.map_err(|error| {
                log::error!("the memory pool's thread cannot be started: {error}");
                CUDA_ERROR_OPERATING_SYSTEM
            })?;
        }
        state.last_user += 1;
        Ok((state.last_user, demand))
    }

    /// Memory of exactly so many bytes, if there is some.
    pub(super) fn take(&self, bytes: u64) -> Option<Memory> {
        let mut state = self.shared.state();
        // Who has memory mapped may want it back.
        let mapped = state.mapped_memory();
        state.take(bytes, |memory| !mapped.contains(&memory)).or_else(|| state.take(bytes, |_| true))
    }

    /// Memory that nobody's work uses any more, and that this user has mapped there.
    pub(super) fn put(&self, bytes: u64, memory: Memory, by: (u64, u64)) {
        let mut state = self.shared.state();
        state.mapped.insert(by, Mapping { bytes, memory });
        state.put(bytes, memory);
    }

    /// Takes back what this user has put there; false if somebody has taken it.
    pub(super) fn take_back(&self, bytes: u64, memory: Memory, by: (u64, u64)) -> bool {
        let mut state = self.shared.state();
        let is_there = state.take(bytes, |idle| idle == memory).is_some();
        if is_there {
            state.mapped.remove(&by);
        }
        is_there
    }

    /// A user unmaps what it has passed on, as `unmap` does unless it was unmapped here.
    pub(super) fn unmap<T>(&self, by: (u64, u64), unmap: impl FnOnce(bool) -> T) -> T {
        let _turn = self.shared.turn();
        let is_mapped = self.shared.state().mapped.contains_key(&by);
        let done = unmap(is_mapped);
        self.shared.state().mapped.remove(&by);
        self.shared.wake.notify_all();
        done
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.shared.state().idle_bytes
    }

    /// Somebody lacks memory: gives the GPU back what is mapped nowhere; if there is none, what users have passed on, for which the
    /// driver waits for all of the GPU's work. False if there was nothing.
    pub(crate) fn give_way(&self) -> bool {
        let before = {
            let mut state = self.shared.state();
            state.withheld_until = Some(Instant::now() + WITHHELD);
            state.given_back
        };
        // What is just being made is given back with the rest, and what is being given back is waited for.
        let turn = self.shared.turn();
        let surplus = self.shared.state().surplus(0, &BTreeMap::new());
        self.shared.release(&surplus);
        drop(turn);
        self.shared.state().given_back != before || self.shared.unmap_all()
    }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.wake.notify_all();
    }
}

impl State {
    fn put(&mut self, bytes: u64, memory: Memory) {
        self.idle.entry(bytes).or_default().push(memory);
        self.idle_bytes += bytes;
    }

    fn take(&mut self, bytes: u64, is_wanted: impl Fn(Memory) -> bool) -> Option<Memory> {
        let idle = self.idle.get_mut(&bytes)?;
        let at = idle.iter().rposition(|memory| is_wanted(*memory))?;
        let taken = idle.swap_remove(at);
        if idle.is_empty() {
            self.idle.remove(&bytes);
        }
        self.idle_bytes -= bytes;
        Some(taken)
    }

    /// Memory that was passed on and is mapped by who did that.
    fn mapped_memory(&self) -> HashSet<Memory> {
        self.mapped.values().map(|mapping| mapping.memory).collect()
    }

    /// Takes memory out that is mapped nowhere until no more than `keep` bytes are left: first what nobody wants.
    fn surplus(&mut self, keep: u64, wanted: &BTreeMap<u64, usize>) -> Vec<Memory> {
        let (mut surplus, mapped) = (Vec::new(), self.mapped_memory());
        for spares_wanted in [true, false] {
            let sizes: Vec<u64> = self.idle.keys().rev().copied().collect();
            for bytes in sizes {
                let spared = if spares_wanted { wanted.get(&bytes).copied().unwrap_or(0) } else { 0 };
                while self.idle_bytes > keep && self.idle.get(&bytes).is_some_and(|idle| idle.len() > spared)
                {
                    let Some(memory) = self.take(bytes, |memory| !mapped.contains(&memory)) else { break };
                    surplus.push(memory);
                }
            }
        }
        surplus
    }

    /// Bytes of each piece that is to be made, so that what is wanted is there, and no more than `most` bytes.
    fn missing(&self, most: u64, wanted: &BTreeMap<u64, usize>) -> Vec<u64> {
        let (mut missing, mut held) = (Vec::new(), self.idle_bytes);
        for (bytes, count) in wanted {
            let there = self.idle.get(bytes).map_or(0, Vec::len);
            for _ in there..*count {
                if held + bytes <= most {
                    held += bytes;
                    missing.push(*bytes);
                }
            }
        }
        missing
    }

    /// Somebody has lacked memory just now.
    fn is_withheld(&self) -> bool {
        self.withheld_until.is_some_and(|until| Instant::now() < until)
    }

    fn has_work(&self) -> bool {
        let is_under_way =
            |demand: &Weak<Demand>| demand.upgrade().is_some_and(|demand| demand.is_under_way());
        let mapped = self.mapped_memory();
        self.demands.iter().any(is_under_way)
            || self.idle.values().flatten().any(|memory| !mapped.contains(memory))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        if self.device.bind().is_err() {
            return;
        }
        let interval = measure(&*self.device);
        log::debug!("memory pools are looked at every {:?}", interval / 2);
        let mut state = self.state();
        while !state.is_over && self.health.fault().is_none() {
            if !state.has_work() {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            self.adjust(interval);
            let waited = self.wake.wait_timeout(self.state(), interval / 2);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // What a failed context had goes with it.
        let all = state.surplus(0, &BTreeMap::new());
        drop(state);
        self.release(&all);
    }

    /// Algorithm 1, once.
    fn adjust(&self, interval: Duration) {
        let _turn = self.turn();
        let mut state = self.state();
        let needs: Vec<_> =
            state.demands.iter().filter_map(|demand| demand.upgrade()?.need(interval)).collect();
        let ready = ready_bytes(&needs);
        let mut wanted = BTreeMap::new();
        for bytes in needs.iter().flat_map(|need| &need.wanted) {
            *wanted.entry(*bytes).or_default() += 1;
        }
        let surplus = state.surplus(ready, &wanted);
        let missing = if state.is_withheld() { Vec::new() } else { state.missing(ready, &wanted) };
        drop(state);
        self.release(&surplus);
        for bytes in missing {
            let is_there = |(free, total): (u64, u64)| free >= bytes + total / LEFT_FREE;
            if !self.device.memory_info().is_ok_and(is_there) {
                return;
            }
            if self.state().is_withheld() {
                return;
            }
            match self.device.memory_create(bytes) {
                Ok(memory) => self.state().put(bytes, memory),
                Err(_) => {
                    self.state().withheld_until = Some(Instant::now() + WITHHELD);
                    return;
                }
            }
        }
    }

    /// Unmaps what was passed on, and gives the GPU what nobody has taken of it; false if there is nothing.
    fn unmap_all(&self) -> bool {
        let _turn = self.turn();
        if self.health.fault().is_some() {
            return false;
        }
        let mut state = self.state();
        let mapped: Vec<_> = state.mapped.iter().map(|(by, mapping)| (*by, *mapping)).collect();
        // Nobody can take it back from here on.
        let idle: Vec<Memory> = std::mem::take(&mut state.idle).into_values().flatten().collect();
        state.idle_bytes = 0;
        drop(state);
        for (by, mapping) in &mapped {
            if let Err(code) = self.device.unmap(by.1, mapping.bytes) {
                log::warn!("what a program has freed stays mapped: {code}");
                break;
            }
            self.state().mapped.remove(by);
        }
        self.release(&idle);
        !mapped.is_empty()
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.unmapping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, memory: &[Memory]) {
        if self.health.fault().is_some() {
            return;
        }
        for memory in memory {
            if let Err(code) = self.device.memory_release(*memory) {
                log::warn!("memory of the pool stays in use: {code}");
            }
        }
        self.state().given_back += memory.len() as u64;
    }
}

/// How long memory takes to be made and given back.
fn measure(device: &dyn Device) -> Duration {
    let granularity = device.granularity().max(1);
    let free = device.memory_info().map_or(0, |(free, _)| free);
    let bytes = MEASURED.min(free / 8) / granularity * granularity;
    let began = Instant::now();
    let made = device.memory_create(bytes).and_then(|memory| device.memory_release(memory));
    let took = if made.is_ok() { began.elapsed() } else { INTERVAL.0 };
    took.clamp(INTERVAL.0, INTERVAL.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_can_be_taken_and_is_not_given_to_the_gpu() {
        let mut state = State::default();
        state.put(4, Memory(1));
        state.put(4, Memory(2));
        state.mapped.insert((7, 4096), Mapping { bytes: 4, memory: Memory(2) });
        state.put(8, Memory(3));
        assert_eq!(state.idle_bytes, 16);
        // What is wanted goes last.
        assert_eq!(state.surplus(12, &BTreeMap::from([(8, 1)])), [Memory(1)]);
        assert_eq!(state.surplus(0, &BTreeMap::new()), [Memory(3)]);
        assert_eq!((state.take(4, |_| true), state.take(4, |_| true)), (Some(Memory(2)), None));
        assert_eq!(state.idle_bytes, 0);
    }

    #[test]
    fn what_is_missing_is_made_up_to_the_size() {
        let mut state = State::default();
        state.put(4, Memory(1));
        let wanted = BTreeMap::from([(4, 2), (16, 1), (32, 1)]);
        assert_eq!(state.missing(24, &wanted), [4, 16]);
        assert_eq!(state.missing(0, &wanted), [0; 0]);
    }
}
