//! How large a pool is: what algorithm 1 says, as long as others have enough of the GPU's memory.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rekindle_device::Device;

use super::{Shared, WITHHELD};
use crate::demand::ready_bytes;

/// So much is made and given back to measure the interval; less on a small GPU.
const MEASURED: u64 = 200 << 20;
/// The interval is at least this, however fast memory is made, and at most.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));
/// The margin: this part of the GPU's memory is left to others. Of what is mapped nowhere so much goes that it is free.
const MARGIN: u64 = 16;
/// Where less than this part is free, what is mapped goes too.
const SCARCE: u64 = 32;
/// How often it is looked at most how much is free: the driver is asked, and others than Rekindle's workers cannot ask for more.
const LOOK: Duration = Duration::from_millis(100);
/// What is mapped goes at most so often because others have little: the driver waits for all of the GPU's work.
const UNMAPPED_EVERY: Duration = Duration::from_secs(1);

impl Shared {
    pub(super) fn run(&self) {
        if self.device.bind().is_err() {
            return;
        }
        let interval = measure(&*self.device);
        log::debug!("memory pools are looked at every {:?}", interval / 2);
        let mut looked: Option<Instant> = None;
        let mut state = self.state();
        while !state.is_over && self.health.fault().is_none() {
            if !state.has_work() {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let nap = if state.is_under_way() { interval / 2 } else { LOOK.max(interval / 2) };
            drop(state);
            self.adjust(interval);
            if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
                looked = Some(Instant::now());
                self.leave_margin();
            }
            let waited = self.wake.wait_timeout(self.state(), nap);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // What a failed context had goes with it.
        let all = state.memory.surplus(0, &BTreeMap::new());
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
        let surplus = state.memory.surplus(ready, &wanted);
        let missing = if state.is_withheld() { Vec::new() } else { state.memory.missing(ready, &wanted) };
        drop(state);
        self.release(&surplus);
        for bytes in missing {
            let is_there = |(free, total): (u64, u64)| free >= bytes + total / MARGIN;
            if !self.device.memory_info().is_ok_and(is_there) {
                return;
            }
            if self.state().is_withheld() {
                return;
            }
            match self.device.memory_create(bytes) {
                Ok(memory) => self.state().memory.put(bytes, memory),
                Err(_) => {
                    self.state().withheld_until = Some(Instant::now() + WITHHELD);
                    return;
                }
            }
        }
    }

    /// Gives the GPU so much that others have the margin, whoever they are.
    pub(super) fn leave_margin(&self) {
        if self.state().memory.bytes() == 0 {
            return;
        }
        let Ok((free, total)) = self.device.memory_info() else { return };
        let short = (total / MARGIN).saturating_sub(free);
        if short == 0 {
            return;
        }
        let turn = self.turn();
        let mut state = self.state();
        let keep = state.memory.bytes().saturating_sub(short);
        let surplus = state.memory.surplus(keep, &BTreeMap::new());
        let given: u64 = surplus.iter().map(|(bytes, _)| bytes).sum();
        let is_due = state.unmapped_for_margin.is_none_or(|last| last.elapsed() >= UNMAPPED_EVERY);
        let unmaps = is_due && free + given < total / SCARCE;
        if unmaps {
            state.unmapped_for_margin = Some(Instant::now());
        }
        drop(state);
        self.release(&surplus);
        drop(turn);
        if unmaps {
            self.unmap_all();
        }
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
