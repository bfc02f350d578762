//! Many copies of boxes in one call.

use rekindle_cuda::types::Memcpy3DBatchOp;
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CuResult};

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;
use crate::refusal::refused;
use crate::stream::resolve;

use super::linear::When;
use super::strided::{self, PointerBox};

/// `CU_MEMCPY_OPERAND_TYPE_POINTER` and `CU_MEMCPY_OPERAND_TYPE_ARRAY`.
const POINTER: u32 = 1;
const ARRAY: u32 = 2;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL`, and the last.
const DURING_CALL: u32 = 2;
const LAST_ORDER: u32 = 3;

/// The index of one that failed, and why.
fn batch(
    operations: In<Memcpy3DBatchOp>,
    count: usize,
    flags: u64,
    stream: Handle,
) -> std::result::Result<(), (usize, CuResult)> {
    let whole = |code| (usize::MAX, code);
    if count == 0 || flags != 0 || stream.is_null() || stream == crate::export::LEGACY {
        return Err(whole(CUDA_ERROR_INVALID_VALUE));
    }
    let place = resolve(stream).map_err(whole)?;
    let operations = operations.slice(count).map_err(whole)?;
    for (index, operation) in operations.iter().enumerate() {
        let one = || {
            let wanted = described(operation)?;
            let when = if operation.order == DURING_CALL { When::Synchronous } else { When::Enqueued };
            strided::copy_pointers(place, &wanted, when)
        };
        one().map_err(|code| (index, code))?;
    }
    Ok(())
}

fn described(operation: &Memcpy3DBatchOp) -> Result<PointerBox> {
    let Memcpy3DBatchOp { from, to, extent, order, .. } = operation;
    if [from.kind, to.kind].contains(&ARRAY) {
        return Err(refused(
            "cuMemcpy3DBatchAsync",
            "it copies between pointers alone, not from or to CUDA arrays",
        ));
    }
    let fits = |length: usize, side: usize| length == 0 || length >= side;
    let [width, height, depth] = *extent;
    let is_valid = [from.kind, to.kind] == [POINTER; 2]
        && !extent.contains(&0)
        && (1..=LAST_ORDER).contains(order)
        && [from, to].iter().all(|side| fits(side.row, width) && fits(side.layer, height));
    if !is_valid {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(PointerBox {
        to: (to.address, to.row, to.layer),
        from: (from.address, from.row, from.layer),
        extent: [width as u64, height as u64, depth as u64],
    })
}

exports! {
    call fn cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz [stream] (count: usize, operations: In<Memcpy3DBatchOp>, failed: Out<usize>, flags: u64, stream: Handle) {
        batch(operations, count, flags, stream).map_err(|(index, code)| {
            failed.offer(index);
            code
        })
    }
    call fn cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz [stream] (count: usize, operations: In<Memcpy3DBatchOp>, flags: u64, stream: Handle) {
        batch(operations, count, flags, stream).map_err(|(_, code)| code)
    }
}
