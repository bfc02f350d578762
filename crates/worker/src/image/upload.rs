//! Bytes of the worker's own, put into device memory before the program goes on.

use rekindle_cuda::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::Result;

use super::block::Blocks;
use super::save_memory;
use crate::client::Client;
use crate::hashing::SUBTREE;

const BLOCK: u64 = 2 << 20;

/// Fills `bytes` of memory: `first` at its start, zeros behind it.
pub(crate) fn upload(
    client: &mut Client,
    index: usize,
    address: u64,
    bytes: u64,
    first: &[u8],
) -> Result<()> {
    let gpus = save_memory::gpus(client);
    let gpu = gpus.get(index).and_then(Option::as_ref).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
    // No more is registered than is needed; a block has room for what the device hashes at once.
    let block = bytes.min(BLOCK).next_multiple_of(SUBTREE);
    let mut blocks = Blocks::new(gpu.device.clone(), block as usize, 1)?;
    let mut blocks = blocks.split();
    let block = blocks.first_mut().ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    let mut done = 0;
    while done < bytes {
        let count = (bytes - done).min(block.capacity() as u64) as usize;
        let room = block.bytes(count)?;
        let rest = first.get(done as usize..).unwrap_or_default();
        let given = rest.len().min(count);
        room[..given].copy_from_slice(&rest[..given]);
        room[given..].fill(0);
        block.put(gpu, address + done, count)?;
        done += count as u64;
    }
    block.wait()
}
