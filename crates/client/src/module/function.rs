//! What a kernel can be asked and told.

use std::ffi::c_char;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_protocol::operation::FunctionCache;

use crate::abi::{Handle, Out, Result};
use crate::arena;
use crate::export::exports;
use crate::{context, device, lane};

use super::kernel::{Found, Kernel, Owner};
use super::library::Library;

fn kernel(handle: Handle) -> Result<&'static Kernel> {
    arena::get(handle)
}

/// The kernel on the device that the call names; a module's function has one of its own.
fn on(handle: Handle, device: i32) -> Result<&'static Found> {
    device::info(device)?;
    kernel(handle)?.on(device as u8)
}

fn parameter(handle: Handle, index: usize, offset: Out<usize>, size: Out<usize>) -> Result<()> {
    offset.check()?;
    let kernel = kernel(handle)?;
    let found = match (&kernel.owner, context::current_if_any()) {
        (Owner::Library(_), None) => kernel.on(0)?,
        _ => kernel.here()?,
    };
    let parameter = found.parameters.get(index).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    offset.put(parameter.offset as usize)?;
    size.offer(parameter.size as usize);
    Ok(())
}

fn set_cache(found: &Found, config: u32) -> Result<()> {
    if config > 3 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    lane::post(&FunctionCache { id: found.id, config: config as i32 }, &[])
}

exports! {
    call fn cuFuncGetAttribute(out: Out<i32>, attribute: i32, function: Handle) { out.put(kernel(function)?.here()?.attribute(attribute)?) }
    call fn cuFuncSetAttribute(function: Handle, attribute: i32, value: i32) { kernel(function)?.here()?.set_attribute(attribute, value) }
    call fn cuFuncSetCacheConfig(function: Handle, config: u32) { set_cache(kernel(function)?.here()?, config) }
    ready fn cuFuncSetSharedMemConfig(function: Handle, _config: u32) { kernel(function).map(drop) }
    call fn cuFuncGetModule(out: Out<Handle>, function: Handle) {
        let kernel = kernel(function)?;
        match kernel.owner {
            Owner::Module { .. } => out.put(kernel.owner_handle),
            Owner::Library(_) => match super::library::cuLibraryGetModule(out, kernel.owner_handle) {
                0 => Ok(()),
                code => Err(rekindle_cuda::CuResult(code)),
            },
        }
    }
    ready fn cuFuncGetName(out: Out<*const c_char>, function: Handle) { out.put(kernel(function)?.name.as_ptr()) }
    call fn cuFuncGetParamInfo(function: Handle, index: usize, offset: Out<usize>, size: Out<usize>) { parameter(function, index, offset, size) }
    ready fn cuFuncIsLoaded(out: Out<u32>, function: Handle) {
        kernel(function)?;
        const LOADED: u32 = 1;
        out.put(LOADED)
    }
    call fn cuFuncLoad(function: Handle) { kernel(function)?.here().map(drop) }

    ready fn cuKernelGetFunction(out: Out<Handle>, handle: Handle) {
        context::current()?;
        kernel(handle)?;
        out.put(handle)
    }
    ready fn cuKernelGetLibrary(out: Out<Handle>, handle: Handle) {
        let kernel = kernel(handle)?;
        arena::get::<Library>(kernel.owner_handle).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
        out.put(kernel.owner_handle)
    }
    call fn cuKernelGetAttribute(out: Out<i32>, attribute: i32, handle: Handle, device: i32) { out.put(on(handle, device)?.attribute(attribute)?) }
    call fn cuKernelSetAttribute(attribute: i32, value: i32, handle: Handle, device: i32) { on(handle, device)?.set_attribute(attribute, value) }
    call fn cuKernelSetCacheConfig(handle: Handle, config: u32, device: i32) { set_cache(on(handle, device)?, config) }
    ready fn cuKernelGetName(out: Out<*const c_char>, handle: Handle) { out.put(kernel(handle)?.name.as_ptr()) }
    call fn cuKernelGetParamInfo(handle: Handle, index: usize, offset: Out<usize>, size: Out<usize>) { parameter(handle, index, offset, size) }
}
