//! What a launch gives the interpreter, and what the interpreter asks of the device.

use std::sync::Arc;

use crate::{Module, View};

/// Device addresses `start..end` that kernels may touch; pages within may still be unmapped or read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    pub start: u64,
    pub end: u64,
}

/// The device's figures that kernels can observe or that bound a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    pub multiprocessors: u32,
    pub clock_hz: u64,
    /// Static and dynamic shared memory that one block may have.
    pub shared_per_block: u32,
    /// Address of 32 zeroed bytes in which the blocks of a cooperative grid meet; kernels find it in
    /// `%envreg1` (high half) and `%envreg2`. Zero for any other launch.
    pub workspace: u64,
    /// The units of so many multiprocessors each that blocks run on, as bits, the last of which may be smaller; 0: all there
    /// are.
    pub units: u64,
    pub unit: u32,
}

impl DeviceLimits {
    /// The multiprocessor that a block runs on.
    pub(crate) fn multiprocessor(&self, block: u64) -> u64 {
        let (all, unit) = (u64::from(self.multiprocessors.max(1)), u64::from(self.unit.max(1)));
        let own = (0..64).filter(|bit| self.units >> bit & 1 == 1).map(|bit| bit * unit);
        let own = own.map(|first| first..all.min(first + unit)).filter(|unit| !unit.is_empty());
        let count: u64 = own.clone().map(|unit| unit.end - unit.start).sum();
        let mut place = block % if count == 0 { all } else { count };
        for unit in own {
            if place < unit.end - unit.start {
                return unit.start + place;
            }
            place -= unit.end - unit.start;
        }
        place
    }
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self {
            multiprocessors: 16,
            clock_hz: 1_000_000_000,
            shared_per_block: 227 * 1024,
            workspace: 0,
            units: 0,
            unit: 0,
        }
    }
}

/// One launch of a kernel. `cluster` of `[0, 0, 0]` or `[1, 1, 1]` means none.
pub struct Launch<'a> {
    pub module: &'a Module,
    /// Index into `module.entries()`.
    pub entry: usize,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub cluster: [u32; 3],
    pub dynamic_shared: u32,
    /// The parameter area as the entry's `parameters` lay it out; missing bytes at its end are zero.
    pub parameters: &'a [u8],
    /// Device address of each of `module.globals()`.
    pub addresses: &'a [u64],
    pub device: DeviceLimits,
}

/// Services the interpreter asks of the device. Called from every thread that runs blocks.
pub trait Host: Sync {
    /// Text of one `printf`, already formatted.
    fn printf(&self, text: &[u8]);
    /// Device-side heap; zero when it is exhausted.
    fn malloc(&self, bytes: u64) -> u64;
    fn free(&self, address: u64);
    /// The texture or surface of this number.
    fn view(&self, _number: u64) -> Option<Arc<View>> {
        None
    }
    /// `cudaGraphSetConditional`: the value by which a graph's conditional node decides.
    fn set_conditional(&self, handle: u64, value: u32);
    /// Polled now and then; `true` stops the launch.
    fn cancelled(&self) -> bool;
}
