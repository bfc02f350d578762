//! Managed memory: pinned memory that program and device both use where it is. Advice and prefetching change nothing.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_cuda::types::{LOCATION_DEVICE, MemLocation};

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;
use crate::stream::resolve;

use super::map::{self, Purpose};
use super::pinned;

fn is_managed(address: u64, bytes: usize) -> Result<()> {
    match map::find(address) {
        Some(a) if a.purpose == Purpose::Managed && address + bytes as u64 <= a.address + a.bytes => Ok(()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// `CU_MEM_LOCATION_TYPE_HOST` to `CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT`.
pub(super) const HOST: std::ops::RangeInclusive<u32> = 2..=4;

fn check_place(target: MemLocation) -> Result<()> {
    match target.kind {
        LOCATION_DEVICE => crate::device::info(target.id).map(drop),
        kind if HOST.contains(&kind) => Ok(()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// The place of what has only a number for it.
fn place_of(device: i32) -> MemLocation {
    let kind = if device == CPU { *HOST.start() } else { LOCATION_DEVICE };
    MemLocation { kind, id: device }
}

fn advise(address: u64, bytes: usize, advice: u32, target: MemLocation) -> Result<()> {
    is_managed(address, bytes)?;
    match advice {
        // Whatever is read by many, and what is not preferred any more, has no place.
        1 | 2 | 4 => Ok(()),
        3 | 5 | 6 => check_place(target),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn prefetch(address: u64, bytes: usize, stream: Handle) -> Result<()> {
    is_managed(address, bytes)?;
    resolve(stream).map(drop)
}

fn prefetch_batch(addresses: In<u64>, sizes: In<usize>, count: usize, stream: Handle) -> Result<()> {
    for (address, bytes) in addresses.slice(count)?.iter().zip(sizes.slice(count)?) {
        is_managed(*address, *bytes)?;
    }
    resolve(stream).map(drop)
}

/// `CU_DEVICE_CPU` and `CU_DEVICE_INVALID`.
const CPU: i32 = -1;
const NO_DEVICE: i32 = -2;

fn range_attribute(out: Out<i32>, size: usize, attribute: u32, address: u64, bytes: usize) -> Result<()> {
    is_managed(address, bytes)?;
    out.check()?;
    if size < 4 || !size.is_multiple_of(4) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    match attribute {
        1 | 5 | 7 => out.put(0),
        2 | 4 | 6 | 8 => out.put(NO_DEVICE),
        3 => {
            out.fill(size / 4, std::iter::repeat(NO_DEVICE));
            Ok(())
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

exports! {
    call fn cuMemAllocManaged(out: Out<u64>, bytes: usize, flags: u32) {
        out.check()?;
        if !matches!(flags, 1 | 2) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        out.put(pinned::allocate(bytes as u64, Purpose::Managed)?)
    }
    ready fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz [stream] (address: u64, bytes: usize, device: i32, stream: Handle) {
        check_place(place_of(device))?;
        prefetch(address, bytes, stream)
    }
    ready fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz [stream] (address: u64, bytes: usize, target: MemLocation, _flags: u32, stream: Handle) {
        check_place(target)?;
        prefetch(address, bytes, stream)
    }
    ready fn cuMemPrefetchBatchAsync | cuMemPrefetchBatchAsync_ptsz [stream] (addresses: In<u64>, sizes: In<usize>, count: usize, _locations: In<MemLocation>, _indices: In<usize>, _location_count: usize, _flags: u64, stream: Handle) {
        prefetch_batch(addresses, sizes, count, stream)
    }
    ready fn cuMemDiscardBatchAsync | cuMemDiscardBatchAsync_ptsz [stream] (addresses: In<u64>, sizes: In<usize>, count: usize, _flags: u64, stream: Handle) {
        prefetch_batch(addresses, sizes, count, stream)
    }
    ready fn cuMemDiscardAndPrefetchBatchAsync | cuMemDiscardAndPrefetchBatchAsync_ptsz [stream] (addresses: In<u64>, sizes: In<usize>, count: usize, _locations: In<MemLocation>, _indices: In<usize>, _location_count: usize, _flags: u64, stream: Handle) {
        prefetch_batch(addresses, sizes, count, stream)
    }
    ready fn cuMemAdvise(address: u64, bytes: usize, advice: u32, device: i32) { advise(address, bytes, advice, place_of(device)) }
    ready fn cuMemAdvise_v2(address: u64, bytes: usize, advice: u32, target: MemLocation) { advise(address, bytes, advice, target) }
    ready fn cuMemRangeGetAttribute(out: Out<i32>, size: usize, attribute: u32, address: u64, bytes: usize) {
        range_attribute(out, size, attribute, address, bytes)
    }
    ready fn cuMemRangeGetAttributes(outs: In<usize>, sizes: In<usize>, attributes: In<u32>, count: usize, address: u64, bytes: usize) {
        let (outs, sizes) = (outs.slice(count)?, sizes.slice(count)?);
        for (index, attribute) in attributes.slice(count)?.iter().enumerate() {
            range_attribute(Out(outs[index] as *mut i32), sizes[index], *attribute, address, bytes)?;
        }
        Ok(())
    }
}
