//! How many blocks of a kernel a multiprocessor holds, as CUDA's occupancy calculator counts for compute capability 9.0.

use crate::attributes::{
    BLOCKS_PER_MULTIPROCESSOR, MAX_THREADS, REGISTERS, SHARED_OPTIN, SHARED_PER_MULTIPROCESSOR,
    SHARED_RESERVED, THREADS_PER_MULTIPROCESSOR, WARP,
};

/// Registers are given out in these steps to each warp, and shared memory to each block.
const REGISTER_UNIT: u32 = 256;
const SHARED_UNIT: u32 = 128;
/// Each multiprocessor has four parts, and a warp's registers lie in one of them.
const PARTS: u32 = 4;

/// What a block takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub threads: u32,
    /// Of each thread.
    pub registers: u32,
    /// Static and dynamic.
    pub shared: u64,
}

/// Blocks that one multiprocessor holds at a time; 0 where even one does not fit.
pub(crate) fn blocks(need: Need) -> u32 {
    if need.threads == 0 || need.threads > MAX_THREADS || need.shared > u64::from(SHARED_OPTIN) {
        return 0;
    }
    let warps = need.threads.div_ceil(WARP);
    let by_warps = THREADS_PER_MULTIPROCESSOR / WARP / warps;
    let per_warp = (need.registers.max(1) * WARP).next_multiple_of(REGISTER_UNIT);
    let by_registers = REGISTERS / PARTS / per_warp * PARTS / warps;
    let shared = (need.shared as u32 + SHARED_RESERVED).next_multiple_of(SHARED_UNIT);
    let by_shared = SHARED_PER_MULTIPROCESSOR / shared;
    by_warps.min(by_registers).min(by_shared).min(BLOCKS_PER_MULTIPROCESSOR)
}

/// Dynamic shared memory that each of `count` blocks on one multiprocessor can have beside `fixed` bytes.
pub(crate) fn shared_for(count: u32, fixed: u32) -> u64 {
    let each = SHARED_PER_MULTIPROCESSOR / count.max(1) / SHARED_UNIT * SHARED_UNIT;
    u64::from(each.saturating_sub(SHARED_RESERVED).min(SHARED_OPTIN).saturating_sub(fixed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scarcest_resource_bounds() {
        let need = Need { threads: 256, registers: 32, shared: 0 };
        assert_eq!(blocks(need), 8);
        assert_eq!(blocks(Need { registers: 64, ..need }), 4);
        assert_eq!(blocks(Need { registers: 255, threads: 1024, ..need }), 0);
        assert_eq!(blocks(Need { shared: 100 << 10, ..need }), 2);
        assert_eq!(blocks(Need { threads: 32, ..need }), 32);
        assert_eq!(blocks(Need { threads: 0, ..need }), 0);
        assert_eq!(shared_for(1, 0), 227 << 10);
        assert_eq!(shared_for(2, 1024), (114 << 10) - 2048);
    }
}
