//! Batches of boxes. Sizes, offsets and lengths are in elements: an array's where one takes part, else bytes.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_cuda::types::{Memcpy3DBatchOp, Memcpy3DOperand, memory_type};

use crate::abi::{Handle, In, Out, Result};
use crate::arena;
use crate::array::Array;
use crate::export::exports;
use crate::stream::{StreamTarget, enter};

use super::linear::When;
use super::strided::{SideDescription, copy};

/// `CU_MEMCPY_OPERAND_TYPE_*`.
const POINTER: u32 = 1;
const ARRAY: u32 = 2;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL`, and the last.
const DURING_CALL: u32 = 2;
const LAST_ORDER: u32 = 3;

/// Bytes of an element of an operand that is an array.
fn element(operand: &Memcpy3DOperand) -> Result<Option<usize>> {
    match operand.kind {
        POINTER => Ok(None),
        ARRAY => Ok(Some(
            arena::get::<Array>(Handle(operand.address as usize))?.description.element_bytes() as usize
        )),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn described(operand: &Memcpy3DOperand, element: usize) -> Result<SideDescription> {
    let bytes = |elements: usize| elements.checked_mul(element).ok_or(CUDA_ERROR_INVALID_VALUE);
    let none = SideDescription { kind: memory_type::UNIFIED, ..SideDescription::default() };
    let [first, second, third] = operand.sizes;
    Ok(match operand.kind {
        ARRAY => SideDescription {
            kind: memory_type::ARRAY,
            array: Handle(operand.address as usize),
            x: bytes(first)?,
            y: second,
            z: third,
            ..none
        },
        _ => SideDescription { device: operand.address, pitch: bytes(first)?, height: second, ..none },
    })
}

fn one(target: StreamTarget, op: &Memcpy3DBatchOp) -> Result<()> {
    let [width, height, depth] = op.extent;
    let fits = |operand: &Memcpy3DOperand| {
        let [row, rows, _] = operand.sizes;
        operand.kind != POINTER || (row == 0 || row >= width) && (rows == 0 || rows >= height)
    };
    let is_valid =
        !op.extent.contains(&0) && (1..=LAST_ORDER).contains(&op.order) && fits(&op.from) && fits(&op.to);
    if !is_valid {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let size = match (element(&op.from)?, element(&op.to)?) {
        (Some(from), Some(to)) if from != to => return Err(CUDA_ERROR_INVALID_VALUE),
        (from, to) => from.or(to).unwrap_or(1),
    };
    let bytes = width.checked_mul(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let whole =
        (described(&op.to, size)?, described(&op.from, size)?, [bytes, height, depth].map(|n| n as u64));
    let when = if op.order == DURING_CALL { When::Synchronous } else { When::Enqueued };
    copy(target, whole, when)
}

fn batch(
    stream: Handle,
    ops: In<Memcpy3DBatchOp>,
    count: usize,
    flags: u64,
    failed: Option<Out<usize>>,
) -> Result<()> {
    if count == 0 || stream.0 <= 1 || flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let target = enter(stream)?;
    for (index, op) in ops.slice(count)?.iter().enumerate() {
        one(target, op).inspect_err(|_| {
            if let Some(failed) = failed {
                failed.offer(index);
            }
        })?;
    }
    Ok(())
}

exports! {
    call fn cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz [stream] (count: usize, ops: In<Memcpy3DBatchOp>, failed: Out<usize>, flags: u64, stream: Handle) {
        batch(stream, ops, count, flags, Some(failed))
    }
    call fn cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz [stream] (count: usize, ops: In<Memcpy3DBatchOp>, flags: u64, stream: Handle) {
        batch(stream, ops, count, flags, None)
    }
}
