//! Streams that wait for a value in memory, or write one.

use rekindle_cuda::types::{BatchMemOp, BatchMemOpWords};
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::ValueOperation;
use rekindle_protocol::operation::{WaitValue, WriteValue};

use crate::abi::{Handle, In, Result};
use crate::export::exports;
use crate::lane;
use crate::stream::{StreamTarget, enter};

fn wait(target: StreamTarget, address: u64, value: u64, width: u32, flags: u32) -> Result<()> {
    check(address, width)?;
    lane::post(&WaitValue { device: target.device, stream: target.id, address, value, width, flags }, &[])
}

fn write(target: StreamTarget, address: u64, value: u64, width: u32, flags: u32) -> Result<()> {
    check(address, width)?;
    lane::post(&WriteValue { device: target.device, stream: target.id, address, value, width, flags }, &[])
}

fn check(address: u64, width: u32) -> Result<()> {
    if address == 0 || !address.is_multiple_of(width.into()) { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

fn batch(stream: Handle, count: u32, operations: In<BatchMemOp>, flags: u32) -> Result<()> {
    if flags != 0 || count > 256 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let target = enter(stream)?;
    for operation in operations.slice(count as usize)? {
        let BatchMemOp { address, value, flags, .. } = *operation;
        match operation.operation {
            1 => wait(target, address, value & 0xffff_ffff, 4, flags)?,
            2 => write(target, address, value & 0xffff_ffff, 4, flags)?,
            4 => wait(target, address, value, 8, flags)?,
            5 => write(target, address, value, 8, flags)?,
            // Flushes and barriers: every operation of ours is ordered and visible to the next.
            3 | 6 => {}
            _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    }
    Ok(())
}

/// One operation of a batch for a node of a graph.
pub fn operation(words: &BatchMemOpWords) -> Result<ValueOperation> {
    let [first, address, value, flags, ..] = *words;
    let (kind, own, flags) = (first as u32, (first >> 32) as u32, flags as u32);
    let value_32 = value & 0xffff_ffff;
    let operation = match kind {
        1 => ValueOperation::Wait { address, value: value_32, width: 4, flags },
        2 => ValueOperation::Write { address, value: value_32, width: 4, flags },
        3 => return Ok(ValueOperation::Flush { flags: own }),
        4 => ValueOperation::Wait { address, value, width: 8, flags },
        5 => ValueOperation::Write { address, value, width: 8, flags },
        6 => return Ok(ValueOperation::Barrier { flags: own }),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    check(address, if kind >= 4 { 8 } else { 4 })?;
    Ok(operation)
}

/// The operation as [`operation`] reads it.
pub fn words(operation: &ValueOperation) -> BatchMemOpWords {
    let with_value = |kind, address, value, flags: u32| [kind, address, value, flags.into(), 0, 0];
    match *operation {
        ValueOperation::Wait { address, value, width, flags } => {
            with_value(if width == 8 { 4 } else { 1 }, address, value, flags)
        }
        ValueOperation::Write { address, value, width, flags } => {
            with_value(if width == 8 { 5 } else { 2 }, address, value, flags)
        }
        ValueOperation::Flush { flags } => [3 | u64::from(flags) << 32, 0, 0, 0, 0, 0],
        ValueOperation::Barrier { flags } => [6 | u64::from(flags) << 32, 0, 0, 0, 0, 0],
    }
}

exports! {
    call fn cuStreamWaitValue32 | cuStreamWaitValue32_ptsz [stream] (stream: Handle, address: u64, value: u32, flags: u32) {
        wait(enter(stream)?, address, value.into(), 4, flags)
    }
    call fn cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz [stream] (stream: Handle, address: u64, value: u32, flags: u32) {
        wait(enter(stream)?, address, value.into(), 4, flags)
    }
    call fn cuStreamWaitValue64 | cuStreamWaitValue64_ptsz [stream] (stream: Handle, address: u64, value: u64, flags: u32) {
        wait(enter(stream)?, address, value, 8, flags)
    }
    call fn cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz [stream] (stream: Handle, address: u64, value: u64, flags: u32) {
        wait(enter(stream)?, address, value, 8, flags)
    }
    call fn cuStreamWriteValue32 | cuStreamWriteValue32_ptsz [stream] (stream: Handle, address: u64, value: u32, flags: u32) {
        write(enter(stream)?, address, value.into(), 4, flags)
    }
    call fn cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz [stream] (stream: Handle, address: u64, value: u32, flags: u32) {
        write(enter(stream)?, address, value.into(), 4, flags)
    }
    call fn cuStreamWriteValue64 | cuStreamWriteValue64_ptsz [stream] (stream: Handle, address: u64, value: u64, flags: u32) {
        write(enter(stream)?, address, value, 8, flags)
    }
    call fn cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz [stream] (stream: Handle, address: u64, value: u64, flags: u32) {
        write(enter(stream)?, address, value, 8, flags)
    }
    call fn cuStreamBatchMemOp | cuStreamBatchMemOp_ptsz [stream] (stream: Handle, count: u32, operations: In<BatchMemOp>, flags: u32) {
        batch(stream, count, operations, flags)
    }
    call fn cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz [stream] (stream: Handle, count: u32, operations: In<BatchMemOp>, flags: u32) {
        batch(stream, count, operations, flags)
    }
}
