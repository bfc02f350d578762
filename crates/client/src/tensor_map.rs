//! Tensor maps: encoded by the device from packed arguments.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_cuda::types::TensorMap;
use rekindle_device::{TensorMapArguments, TensorMapWindow};
use rekindle_protocol::operation::{TensorMap as Encode, TensorMapReplace};

use crate::abi::{In, Out, Result};
use crate::export::exports;
use crate::{context, lane};

/// The first `N` values of an array as long as `rank`, zero beyond.
fn row<T: Copy + Default, const N: usize>(from: In<T>, rank: usize) -> Result<[T; N]> {
    let mut row = [T::default(); N];
    row.get_mut(..rank).ok_or(CUDA_ERROR_INVALID_VALUE)?.copy_from_slice(from.slice(rank)?);
    Ok(row)
}

/// What both encodings are given.
struct Common {
    data_type: u32,
    rank: u32,
    address: u64,
    dimensions: In<u64>,
    strides: In<u64>,
    element_strides: In<u32>,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    fill: u32,
}

fn encode(out: Out<TensorMap>, common: Common, window: TensorMapWindow) -> Result<()> {
    out.check()?;
    let rank = common.rank as usize;
    if !(1..=5).contains(&rank) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let arguments = TensorMapArguments {
        data_type: common.data_type,
        rank: common.rank,
        address: common.address,
        dimensions: row(common.dimensions, rank)?,
        strides: row(common.strides, rank - 1)?,
        element_strides: row(common.element_strides, rank)?,
        interleave: common.interleave,
        swizzle: common.swizzle,
        l2_promotion: common.l2_promotion,
        out_of_bounds_fill: common.fill,
        window,
    };
    let device = context::current_if_any().map_or(0, |context| context.device);
    let encoded = lane::ask(&Encode { device, kind: arguments.kind(), arguments: &arguments.to_bytes() })?;
    out.put(TensorMap(encoded.try_into().map_err(|_| rekindle_cuda::CUDA_ERROR_UNKNOWN)?))
}

exports! {
    call fn cuTensorMapReplaceAddress(map: Out<TensorMap>, address: u64) {
        let device = context::device()?;
        let replaced = lane::ask(&TensorMapReplace { device, map: &map.current()?.0, address })?;
        map.put(TensorMap(replaced.try_into().map_err(|_| rekindle_cuda::CUDA_ERROR_UNKNOWN)?))
    }
    call fn cuTensorMapEncodeTiled(out: Out<TensorMap>, data_type: u32, rank: u32, address: u64, dimensions: In<u64>, strides: In<u64>, sides: In<u32>, element_strides: In<u32>, interleave: u32, swizzle: u32, l2_promotion: u32, fill: u32) {
        let common = Common { data_type, rank, address, dimensions, strides, element_strides, interleave, swizzle, l2_promotion, fill };
        encode(out, common, TensorMapWindow::Tiled { sides: row(sides, rank as usize)? })
    }
    call fn cuTensorMapEncodeIm2col(out: Out<TensorMap>, data_type: u32, rank: u32, address: u64, dimensions: In<u64>, strides: In<u64>, lower: In<i32>, upper: In<i32>, channels: u32, pixels: u32, element_strides: In<u32>, interleave: u32, swizzle: u32, l2_promotion: u32, fill: u32) {
        let corners = (rank as usize).checked_sub(2).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let window = TensorMapWindow::Im2col { lower: row(lower, corners)?, upper: row(upper, corners)?, channels, pixels };
        let common = Common { data_type, rank, address, dimensions, strides, element_strides, interleave, swizzle, l2_promotion, fill };
        encode(out, common, window)
    }
}
