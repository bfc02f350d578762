//! Atomics: of the host on device memory, plain on what only the thread at hand runs.

use super::access;
use super::memory::AddressTarget;
use super::step::{Exec, StepError, Stop};
use super::warp::{Path, lanes};
use crate::alu::{LANES, Lanes};
use crate::program::{Access, Atomic};

impl Exec<'_> {
    pub fn atomic(
        &mut self,
        path: &Path,
        atomic: &Atomic,
        result: u32,
        sources: &[u32],
        mask: u32,
    ) -> Result<(), Stop> {
        let addresses = self.addresses(path, &atomic.access, sources[0]);
        let [b, c] = [sources[1], sources[2]].map(|source| *self.row(path, source));
        let mut old = [0; LANES];
        for lane in lanes(mask) {
            let change = |value: u64| (atomic.update)(value, b[lane], c[lane]);
            old[lane] = self
                .update(lane, &atomic.access, addresses[lane], change)
                .map_err(|trouble| trouble.at(lane))?;
        }
        self.set(path, result, &old, mask);
        Ok(())
    }

    fn update(
        &mut self,
        lane: usize,
        access: &Access,
        address: u64,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, StepError> {
        let mut old = self.read(lane, access.space, address, access.width)?;
        let AddressTarget::Device(at) = self.place(access.space, address, usize::from(access.width), true)?
        else {
            // Only this thread runs the cluster.
            self.write(lane, access.space, address, access.width, change(old))?;
            return Ok(old);
        };
        loop {
            let found = access::compare_exchange(at, access.width, old, change(old))
                .map_err(|_| StepError::Address { address, write: true })?;
            if found == old {
                return Ok(old);
            }
            old = found;
        }
    }

    pub fn atomic128(
        &mut self,
        path: &Path,
        access: &Access,
        compare: bool,
        results: &[u32],
        sources: &[u32],
        mask: u32,
    ) -> Result<(), Stop> {
        let addresses = self.addresses(path, access, sources[0]);
        self.check_vector(access, &addresses, mask)?;
        let values: Vec<Lanes> = sources[1..].iter().map(|source| *self.row(path, *source)).collect();
        for lane in lanes(mask) {
            let operand = |index: usize| [values[2 * index][lane], values[2 * index + 1][lane]];
            let old = self
                .update128(lane, access, addresses[lane], |old| match compare {
                    true if old != operand(0) => old,
                    true => operand(1),
                    false => operand(0),
                })
                .map_err(|trouble| trouble.at(lane))?;
            for (result, half) in results.iter().zip(old) {
                self.set(path, *result, &[half; LANES], 1 << lane);
            }
        }
        Ok(())
    }

    fn update128(
        &mut self,
        lane: usize,
        access: &Access,
        address: u64,
        change: impl Fn([u64; 2]) -> [u64; 2],
    ) -> Result<[u64; 2], StepError> {
        let mut old = [
            self.read(lane, access.space, address, 8)?,
            self.read(lane, access.space, address.wrapping_add(8), 8)?,
        ];
        let AddressTarget::Device(at) = self.place(access.space, address, 16, true)? else {
            let [low, high] = change(old);
            self.write(lane, access.space, address, 8, low)?;
            self.write(lane, access.space, address.wrapping_add(8), 8, high)?;
            return Ok(old);
        };
        loop {
            let found = access::compare_exchange128(at, old, change(old))
                .map_err(|_| StepError::Address { address, write: true })?;
            if found == old {
                return Ok(old);
            }
            old = found;
        }
    }
}
