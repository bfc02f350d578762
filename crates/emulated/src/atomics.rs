//! What an emulated GPU does of atomic operations on memory of the host: all that it does on its own, which is that too.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::Result;

/// `CUatomicOperationCapability`.
const SIGNED: u32 = 1;
const UNSIGNED: u32 = 2;
const REDUCTION: u32 = 4;
const SCALAR_32: u32 = 8;
const SCALAR_64: u32 = 16;
const SCALAR_128: u32 = 32;

/// In the order of `CUatomicOperation`: add, min, max; increment, decrement; and, or, xor; exchange, compare and swap; of
/// floats add, min, max.
const CAPABILITIES: [u32; 13] = {
    let numbers = SIGNED | UNSIGNED | REDUCTION | SCALAR_32 | SCALAR_64;
    let counters = UNSIGNED | REDUCTION | SCALAR_32;
    let bits = UNSIGNED | REDUCTION | SCALAR_32 | SCALAR_64;
    let swaps = UNSIGNED | SCALAR_32 | SCALAR_64 | SCALAR_128;
    let floats = SIGNED | REDUCTION | SCALAR_32 | SCALAR_64;
    [numbers, numbers, numbers, counters, counters, bits, bits, bits, swaps, swaps, floats, 0, 0]
};

pub(crate) fn capabilities(operations: &[u32]) -> Result<Vec<u32>> {
    let known =
        |operation: &u32| CAPABILITIES.get(*operation as usize).copied().ok_or(CUDA_ERROR_INVALID_VALUE);
    operations.iter().map(known).collect()
}
