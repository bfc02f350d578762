//! Occupancy: asked of the device once for each set of arguments, then answered from what it said.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_cuda::types::LaunchConfig;
use rekindle_device::Launch;
use rekindle_protocol::operation::{Id, OccupancyBlocks, OccupancyClusters, OccupancyShared};

use crate::abi::{Handle, In, Out, Result};
use crate::arena;
use crate::export::exports;
use crate::launch::described;
use crate::module::{Found, Kernel};
use crate::{device, lane};

/// Answers by arguments. `FunctionSet` may change them, so a kernel's attribute is part of the arguments.
struct Cache<K, V>(Mutex<Option<HashMap<K, V>>>);

impl<K: Hash + Eq, V: Copy> Cache<K, V> {
    const fn new() -> Self {
        Cache(Mutex::new(None))
    }

    fn get(&self, key: K, ask: impl FnOnce() -> Result<V>) -> Result<V> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = held.get_or_insert_default().get(&key) {
            return Ok(*value);
        }
        drop(held);
        let value = ask()?;
        held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_or_insert_default().insert(key, value);
        Ok(value)
    }
}

/// A kernel and what of it may change: largest dynamic shared memory, carve-out, cluster size.
type Key = (Id, i32, i32, i32);

static BLOCKS: Cache<(Key, i32, u64, u32), i32> = Cache::new();
static SHARED: Cache<(Key, i32, i32), u64> = Cache::new();
static CLUSTERS: Cache<(Key, Vec<u8>, bool), i32> = Cache::new();

fn key(found: &Found) -> Result<Key> {
    Ok((found.id, found.attribute(8)?, found.attribute(9)?, found.attribute(14)?))
}

fn here(function: Handle) -> Result<&'static Found> {
    arena::get::<Kernel>(function)?.here()
}

fn blocks(found: &Found, block: i32, shared: u64, flags: u32) -> Result<i32> {
    if block <= 0 || flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    BLOCKS.get((key(found)?, block, shared, flags), || {
        lane::ask(&OccupancyBlocks { function: found.id, block, shared, flags })
    })
}

fn clusters(function: Handle, config: In<LaunchConfig>, size: bool) -> Result<i32> {
    let (found, launch): (_, Launch) = (here(function)?, described(&config.get()?)?);
    let bytes = postcard::to_stdvec(&launch).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    CLUSTERS.get((key(found)?, bytes, size), || {
        lane::ask(&OccupancyClusters { function: found.id, launch, size })
    })
}

/// Dynamic shared memory that a block of this size needs, as the program computes it.
type BlockToShared = extern "C" fn(i32) -> usize;

/// The block size with which most threads run at once, and the grid that fills the device with such blocks.
fn potential(function: Handle, shared: impl Fn(i32) -> usize, limit: i32, flags: u32) -> Result<(i32, i32)> {
    let found = here(function)?;
    let warp = device::attribute(found.device, 10)?.max(1);
    let multiprocessors = device::attribute(found.device, 16)?;
    let most_threads = device::attribute(found.device, 39)?;
    let largest = found.attribute(0)?.min(device::attribute(found.device, 1)?);
    let largest = if limit > 0 { largest.min(limit) } else { largest };
    if largest <= 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (mut best_block, mut best_blocks) = (0, 0);
    let mut size = largest;
    while size > 0 {
        let at_once = blocks(found, size, shared(size) as u64, flags)?;
        if at_once * size > best_block * best_blocks {
            (best_block, best_blocks) = (size, at_once);
        }
        if best_block * best_blocks >= most_threads {
            break;
        }
        size = if size % warp == 0 { size - warp } else { size - size % warp };
    }
    Ok((best_blocks * multiprocessors, best_block))
}

fn answer_potential(grid: Out<i32>, block: Out<i32>, found: Result<(i32, i32)>) -> Result<()> {
    grid.check()?;
    block.check()?;
    let (grid_size, block_size) = found?;
    grid.put(grid_size)?;
    block.put(block_size)
}

fn shared_by(function: Option<BlockToShared>, fixed: usize) -> impl Fn(i32) -> usize {
    move |size| function.map_or(fixed, |function| function(size))
}

exports! {
    call fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, function: Handle, block: i32, shared: usize) {
        out.put(blocks(here(function)?, block, shared as u64, 0)?)
    }
    call fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: Out<i32>, function: Handle, block: i32, shared: usize, flags: u32) {
        out.put(blocks(here(function)?, block, shared as u64, flags)?)
    }
    call fn cuOccupancyAvailableDynamicSMemPerBlock(out: Out<usize>, function: Handle, blocks: i32, block: i32) {
        if blocks <= 0 || block <= 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let found = here(function)?;
        let answer = SHARED.get((key(found)?, blocks, block), || {
            lane::ask(&OccupancyShared { function: found.id, blocks, block })
        })?;
        out.put(answer as usize)
    }
    call fn cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, function: Handle, to_shared: Option<BlockToShared>, shared: usize, limit: i32) {
        answer_potential(grid, block, potential(function, shared_by(to_shared, shared), limit, 0))
    }
    call fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, function: Handle, to_shared: Option<BlockToShared>, shared: usize, limit: i32, flags: u32) {
        answer_potential(grid, block, potential(function, shared_by(to_shared, shared), limit, flags))
    }
    call fn cuOccupancyMaxActiveClusters(out: Out<i32>, function: Handle, config: In<LaunchConfig>) {
        out.put(clusters(function, config, false)?)
    }
    call fn cuOccupancyMaxPotentialClusterSize(out: Out<i32>, function: Handle, config: In<LaunchConfig>) {
        out.put(clusters(function, config, true)?)
    }
}
