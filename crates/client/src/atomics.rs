//! Which atomic operations the links of a device take.

use rekindle_cuda::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::GpuKind;
use rekindle_protocol::operation::HostAtomics;

use crate::abi::{In, Out, Result};
use crate::device::{can_reach, info};
use crate::export::exports;
use crate::{context, lane};

/// `CU_ATOMIC_OPERATION_MAX`.
const OPERATIONS: u32 = 13;

fn wanted(out: Out<u32>, operations: In<u32>, count: u32) -> Result<Vec<u32>> {
    out.check()?;
    let operations = operations.slice(count as usize)?.to_vec();
    if operations.is_empty() || operations.iter().any(|operation| *operation >= OPERATIONS) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(operations)
}

fn number(device: i32) -> Result<u8> {
    info(device)?;
    u8::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)
}

exports! {
    call fn cuDeviceGetHostAtomicCapabilities(out: Out<u32>, operations: In<u32>, count: u32, device: i32) {
        let device = number(device)?;
        let operations = wanted(out, operations, count)?;
        context::open(device)?;
        out.fill(count as usize, lane::ask(&HostAtomics { device, operations })?);
        Ok(())
    }
    call fn cuDeviceGetP2PAtomicCapabilities(out: Out<u32>, operations: In<u32>, count: u32, from: i32, to: i32) {
        let (from, to) = (number(from)?, number(to)?);
        if from == to {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        let operations = wanted(out, operations, count)?;
        // Emulated ones have each other's memory as they have the host's.
        let found = match info(from.into())?.kind == GpuKind::Emulated && can_reach(from, to)? {
            true => {
                context::open(from)?;
                lane::ask(&HostAtomics { device: from, operations })?
            }
            false => vec![0; operations.len()],
        };
        out.fill(count as usize, found);
        Ok(())
    }
}
