//! Kernel launches: checked here as the driver checks them, parameters packed, then enqueued.

use std::ffi::c_void;

use rekindle_cuda::types::{LaunchAttribute, LaunchConfig};
use rekindle_cuda::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
    CUDA_ERROR_NOT_SUPPORTED,
};
use rekindle_device::{Launch, LaunchAttributes};
use rekindle_protocol::operation::{LaunchKernel, LaunchKernelWith};

use crate::abi::{Handle, In, Result};
use crate::arena;
use crate::export::exports;
use crate::module::{Found, Kernel};
use crate::stream::enter;
use crate::{device, lane};

/// An array of pointers to parameters, or of keys and values.
pub type Pointers = *const *const c_void;

/// Indices of `CUfunction_attribute`.
const MAX_THREADS: i32 = 0;
const REGISTERS: i32 = 4;
const MAX_DYNAMIC_SHARED: i32 = 8;

/// Keys of the `extra` array.
pub const END: usize = 0;
pub const BUFFER: usize = 1;
pub const SIZE: usize = 2;

/// The longest parameter buffer that any device takes.
const LARGEST: usize = 32764;

/// Refuses what the driver refuses at once.
pub fn check(found: &Found, grid: [u32; 3], block: [u32; 3], shared: u32) -> Result<()> {
    if grid.contains(&0) || block.contains(&0) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let info = device::info(found.device.into())?;
    // Attributes 2 to 4 are the largest block, 5 to 7 the largest grid.
    for (axis, (block, grid)) in block.iter().zip(grid).enumerate() {
        let limit = |first: i32| info.attribute(first + axis as i32).filter(|l| *l > 0);
        if limit(2).is_some_and(|l| *block > l as u32) || limit(5).is_some_and(|l| grid > l as u32) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
    }
    let threads: u64 = block.iter().map(|n| u64::from(*n)).product();
    let limit = found.attribute(MAX_THREADS)?;
    if limit > 0 && threads > limit as u64 {
        // Beyond what the kernel was compiled for is invalid; what only its registers forbid lacks resources.
        let valid = info.attribute(1).is_none_or(|most| threads <= most as u64);
        let needed = threads.next_multiple_of(32) * found.attribute(REGISTERS)?.max(0) as u64;
        let lacking = info.attribute(12).is_some_and(|registers| needed > registers as u64);
        return Err(if valid && lacking {
            CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        } else {
            CUDA_ERROR_INVALID_VALUE
        });
    }
    let dynamic = found.attribute(MAX_DYNAMIC_SHARED)?;
    if dynamic > 0 && u64::from(shared) > dynamic as u64 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// Calls `with` with the packed parameters.
pub fn with_parameters<T>(
    found: &Found,
    parameters: Pointers,
    extra: Pointers,
    with: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<T> {
    if !extra.is_null() {
        if !parameters.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // A buffer may be longer than the parameters: structures end with padding.
        let buffer = from_extra(extra)?;
        return with(&buffer[..buffer.len().min(found.parameter_bytes)]);
    }
    if found.parameters.is_empty() {
        return with(&[]);
    }
    if parameters.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    const SHORT: usize = 512;
    if found.parameter_bytes <= SHORT {
        let mut packed = [0u8; SHORT];
        pack(found, parameters, &mut packed)?;
        with(&packed[..found.parameter_bytes])
    } else {
        let mut packed = vec![0; found.parameter_bytes];
        pack(found, parameters, &mut packed)?;
        with(&packed)
    }
}

fn pack(found: &Found, parameters: Pointers, packed: &mut [u8]) -> Result<()> {
    for (index, parameter) in found.parameters.iter().enumerate() {
        // SAFETY: the caller passes one pointer for each parameter of the kernel.
        let from = unsafe { parameters.add(index).read() };
        let to =
            packed.get_mut(parameter.offset as usize..).and_then(|p| p.get_mut(..parameter.size as usize));
        let to = to.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if from.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: each pointer leads to as many bytes as its parameter has.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.as_mut_ptr(), to.len()) };
    }
    Ok(())
}

fn from_extra<'a>(extra: Pointers) -> Result<&'a [u8]> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), None);
    for index in (0..8).step_by(2) {
        // SAFETY: the array holds pairs of key and value and ends with a key of its own.
        let key = unsafe { extra.add(index).read() } as usize;
        if key == END {
            break;
        }
        // SAFETY: as above.
        let value = unsafe { extra.add(index + 1).read() };
        match key {
            BUFFER => buffer = value.cast(),
            SIZE => size = Some(In(value.cast::<usize>()).get()?),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    match size {
        Some(0) => Ok(&[]),
        Some(size) if !buffer.is_null() && size <= LARGEST => {
            // SAFETY: the caller says that the buffer holds `size` bytes, for the time of the call.
            Ok(unsafe { std::slice::from_raw_parts(buffer, size) })
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

const COOPERATIVE: u32 = 2;
/// Launch attributes that carry an event or a node.
const WITH_HANDLES: [u32; 3] = [7, 12, 13];

/// The launch that a configuration describes, but for its stream.
pub fn described(config: &LaunchConfig) -> Result<Launch> {
    let given: In<LaunchAttribute> = In(config.attributes);
    let mut cooperative = false;
    let mut attributes = Vec::new();
    for attribute in given.slice(config.attribute_count as usize)? {
        match attribute.id {
            0 => {}
            COOPERATIVE => cooperative = attribute.value[..4] != [0; 4],
            id if WITH_HANDLES.contains(&id) => return Err(CUDA_ERROR_NOT_SUPPORTED),
            id => attributes.push((id, attribute.value.to_vec())),
        }
    }
    let attributes = LaunchAttributes(attributes);
    Ok(Launch { grid: config.grid, block: config.block, shared: config.shared, cooperative, attributes })
}

fn launch(
    function: Handle,
    launch: Launch,
    stream: Handle,
    parameters: Pointers,
    extra: Pointers,
) -> Result<()> {
    let target = enter(stream)?;
    let found = arena::get::<Kernel>(function)?.here()?;
    if found.device != target.device {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    let Launch { grid, block, shared, cooperative, attributes } = launch;
    check(found, grid, block, shared)?;
    let (device, stream, function) = (target.device, target.id, found.id);
    with_parameters(found, parameters, extra, |packed| {
        if !cooperative && attributes.0.is_empty() {
            return lane::post_work(&LaunchKernel { device, stream, function, grid, block, shared }, packed);
        }
        let with =
            LaunchKernelWith { device, stream, function, grid, block, shared, cooperative, attributes };
        lane::post_work(&with, packed)
    })
}

/// A launch without attributes, whose parameters are an `extra` array.
pub fn plain(
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    extra: Pointers,
) -> Result<()> {
    launch(function, Launch { grid, block, shared, ..Launch::default() }, stream, std::ptr::null(), extra)
}

exports! {
    call fn cuLaunchKernel | cuLaunchKernel_ptsz [stream] (function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Handle, parameters: Pointers, extra: Pointers) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, Launch { grid, block, shared, ..Launch::default() }, stream, parameters, extra)
    }
    call fn cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz [stream] (function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Handle, parameters: Pointers) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, Launch { grid, block, shared, cooperative: true, ..Launch::default() }, stream, parameters, std::ptr::null())
    }
    call fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz {default} (config: In<LaunchConfig>, function: Handle, parameters: Pointers, extra: Pointers) {
        let config = config.get()?;
        let stream = Handle::from(config.stream);
        launch(function, described(&config)?, if stream.is_null() { default } else { stream }, parameters, extra)
    }
}
