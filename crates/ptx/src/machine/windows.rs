//! Generic addresses of what is not device memory.
//!
//! Shared memory has 24 bits of offset and above them, one more than the rank in the cluster of the block that
//! it belongs to; zero there means the accessing block's own.

pub(crate) const SHARED: u64 = 0x4000_0000_0000;
pub(crate) const LOCAL: u64 = 0x4100_0000_0000;
pub(crate) const PARAM: u64 = 0x4200_0000_0000;
const FUNCTION: u64 = 0x4300_0000_0000;
const SIZE: u64 = 1 << 32;
const RANK_SHIFT: u32 = 24;

pub(crate) fn in_window(address: u64, window: u64) -> bool {
    address.wrapping_sub(window) < SIZE
}

/// Whether a generic address belongs to the interpreter (shared, local, parameters, functions); the device must
/// map no memory there.
pub fn is_window_address(address: u64) -> bool {
    [SHARED, LOCAL, PARAM, FUNCTION].iter().any(|window| in_window(address, *window))
}

pub(crate) fn function_address(index: u32) -> u64 {
    FUNCTION + u64::from(index) * 16
}

pub(crate) fn function_index(address: u64) -> Option<u32> {
    (in_window(address, FUNCTION) && address.is_multiple_of(16)).then(|| ((address - FUNCTION) / 16) as u32)
}

/// The same place in the shared memory of another block of the cluster.
pub(crate) fn of_rank(address: u64, rank: u64) -> u64 {
    address & !(0xff << RANK_SHIFT) | ((rank + 1) & 0xff) << RANK_SHIFT
}

/// Rank, if one is named, and offset of an address in shared space.
pub(crate) fn split_shared(address: u64) -> (Option<u32>, usize) {
    let rank = (address >> RANK_SHIFT & 0xff) as u32;
    (rank.checked_sub(1), (address & ((1 << RANK_SHIFT) - 1)) as usize)
}
