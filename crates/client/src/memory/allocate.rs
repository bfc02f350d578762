//! Device memory.

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_protocol::operation::{MemoryAllocate, MemoryFree, MemoryInfo};

use crate::abi::{Out, Result};
use crate::export::exports;
use crate::{context, context_state, graph, lane, session};

use super::map::{self, Purpose};
use super::pinned;

/// Rows of pitched memory begin at multiples of this.
const PITCH: u64 = 512;

fn allocate(bytes: u64) -> Result<u64> {
    let device = context::device()?;
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if bytes > session::get()?.device(device.into())?.total_memory {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let address = lane::ask(&MemoryAllocate { device, bytes })?;
    map::note(address, bytes, Purpose::Device)?;
    Ok(address)
}

fn free(address: u64) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    if graph::memory::is_graph_s(address) {
        context_state::synchronize(context::device()?)?;
        return graph::memory::free(address);
    }
    let freed = map::take(address, |a| {
        let of_pool = matches!(a.purpose, Purpose::Pooled { .. } | Purpose::PoolImport { .. });
        of_pool || matches!(a.purpose, Purpose::Device | Purpose::Managed)
    })?;
    session::get()?.sticky_error(freed.device)?;
    match freed.purpose {
        Purpose::Managed => pinned::release(freed),
        Purpose::PoolImport { .. } => super::pool::close(freed),
        _ => lane::ask(&MemoryFree { device: freed.device, address }),
    }
}

exports! {
    call fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (available, all) = lane::ask(&MemoryInfo { device: context::device()? })?;
        free.offer(available as usize);
        total.offer(all as usize);
        Ok(())
    }
    call fn cuMemAlloc_v2(out: Out<u64>, bytes: usize) {
        out.check()?;
        out.put(allocate(bytes as u64)?)
    }
    call fn cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        out.check()?;
        pitch.check()?;
        if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let row = (width as u64).checked_next_multiple_of(PITCH).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height as u64).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        out.put(allocate(bytes)?)?;
        pitch.put(row as usize)
    }
    call fn cuMemFree_v2(address: u64) { free(address) }
    ready fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) {
        let allocation = map::find(address).ok_or(CUDA_ERROR_NOT_FOUND)?;
        base.offer(allocation.address);
        bytes.offer(allocation.bytes as usize);
        Ok(())
    }
}
