//! Tensor maps of the emulated GPU: tiles of tensors without interleaved layouts.

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Result, TensorMapArguments, TensorMapWindow};
use rekindle_ptx::{TENSOR_MAP_BYTES, TensorMap};

/// What PTX calls each `CUtensorMapDataType`.
const ELEMENTS: [u8; 13] = [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8, 11, 12];

pub(crate) fn encode(kind: u32, arguments: &[u8]) -> Result<[u8; TENSOR_MAP_BYTES]> {
    let given = TensorMapArguments::from_bytes(kind, arguments).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let TensorMapWindow::Tiled { sides } = given.window else { return Err(CUDA_ERROR_NOT_SUPPORTED) };
    let element = ELEMENTS.get(given.data_type as usize).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    if given.interleave != 0 || given.out_of_bounds_fill != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let rank = given.rank as usize;
    let map = TensorMap {
        element: *element,
        swizzle: u8::try_from(given.swizzle).map_err(|_| CUDA_ERROR_INVALID_VALUE)?,
        address: given.address,
        dimensions: given.dimensions[..rank].to_vec(),
        strides: given.strides[..rank - 1].to_vec(),
        sides: sides[..rank].to_vec(),
        steps: given.element_strides[..rank].to_vec(),
    };
    refused(map.encode())
}

pub(crate) fn replace(map: [u8; TENSOR_MAP_BYTES], address: u64) -> Result<[u8; TENSOR_MAP_BYTES]> {
    let map = refused(TensorMap::decode(&map))?;
    refused(TensorMap { address, ..map }.encode())
}

fn refused<T>(answer: std::result::Result<T, String>) -> Result<T> {
    answer.map_err(|problem| {
        log::warn!("{problem}");
        CUDA_ERROR_INVALID_VALUE
    })
}
