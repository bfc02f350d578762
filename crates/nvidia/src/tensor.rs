//! Tensor maps: descriptions of a tensor that the GPU's bulk copies take.

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Result, TensorMapArguments, TensorMapWindow};

use crate::driver::Driver;
use crate::sys::TensorMap;

pub fn encode(driver: &Driver, kind: u32, arguments: &[u8]) -> Result<[u8; 128]> {
    let a = TensorMapArguments::from_bytes(kind, arguments).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut map = TensorMap([0; 128]);
    let (dimensions, strides, steps) =
        (a.dimensions.as_ptr(), a.strides.as_ptr(), a.element_strides.as_ptr());
    let code = match &a.window {
        TensorMapWindow::Tiled { sides } => {
            let encode = driver.functions.cuTensorMapEncodeTiled.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
            // SAFETY: each array has room for the greatest rank, 5; the map is written, nothing is kept.
            unsafe {
                encode(
                    &mut map,
                    a.data_type,
                    a.rank,
                    a.address,
                    dimensions,
                    strides,
                    sides.as_ptr(),
                    steps,
                    a.interleave,
                    a.swizzle,
                    a.l2_promotion,
                    a.out_of_bounds_fill,
                )
            }
        }
        TensorMapWindow::Im2col { lower, upper, channels, pixels } => {
            let encode = driver.functions.cuTensorMapEncodeIm2col.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
            // SAFETY: as above; the corners have the rank minus two rows.
            unsafe {
                encode(
                    &mut map,
                    a.data_type,
                    a.rank,
                    a.address,
                    dimensions,
                    strides,
                    lower.as_ptr(),
                    upper.as_ptr(),
                    *channels,
                    *pixels,
                    steps,
                    a.interleave,
                    a.swizzle,
                    a.l2_promotion,
                    a.out_of_bounds_fill,
                )
            }
        }
    };
    driver.check("cuTensorMapEncode", code).map(|()| map.0)
}

pub fn replace(driver: &Driver, map: [u8; 128], address: u64) -> Result<[u8; 128]> {
    let replace = driver.functions.cuTensorMapReplaceAddress.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    let mut map = TensorMap(map);
    // SAFETY: the map is aligned as the driver wants it, and written; nothing is kept.
    let code = unsafe { replace(&mut map, address) };
    driver.check("cuTensorMapReplaceAddress", code).map(|()| map.0)
}
