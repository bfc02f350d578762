//! Parts of the multiprocessors, which streams are made on.

use std::collections::HashMap;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{Part, Result, Units};

/// An H200 of 132 multiprocessors has 16 units of 8 too.
const UNITS: u32 = 16;

/// How so many multiprocessors are divided.
pub(crate) fn units(multiprocessors: u32) -> Units {
    let each = (multiprocessors / UNITS).max(1);
    Units { count: multiprocessors / each, multiprocessors: each, rest: multiprocessors % each }
}

/// How many of so many these units are; 0 is all.
pub(crate) fn multiprocessors(all: u32, set: u64) -> u32 {
    if set == 0 { all } else { units(all).multiprocessors_of(set) }
}

#[derive(Default)]
pub(crate) struct Parts {
    parts: HashMap<u64, u64>,
    next: u64,
}

impl Parts {
    pub fn create(&mut self, multiprocessors: u32, set: u64) -> Result<Part> {
        if set == 0 || set & !units(multiprocessors).whole() != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.next += 1;
        self.parts.insert(self.next, set);
        Ok(Part(self.next))
    }

    pub fn destroy(&mut self, part: Part) -> Result<()> {
        self.parts.remove(&part.0).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn units(&self, part: Part) -> Result<u64> {
        self.parts.get(&part.0).copied().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}
