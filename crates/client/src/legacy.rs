//! Functions of CUDA before 4.0 that later ones have taken the place of.
//!
//! A launch was put together call by call: the block's shape, the parameters' bytes one by one, then the launch. Older forms
//! of other functions have narrower sizes; those that take or give device addresses of 32 bits are not there, since memory
//! lies above.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CuResult};
use rekindle_protocol::operation::Id;

use crate::abi::{Handle, In, Out, Result, Text};
use crate::arena;
use crate::export::{LEGACY, exports};
use crate::launch;
use crate::module::Kernel;
use crate::{context, device, memory, module, stream};

/// A launch in the making.
#[derive(Clone, Default)]
struct Prepared {
    block: [u32; 3],
    shared: u32,
    parameters: Vec<u8>,
}

/// The longest parameter buffer that these functions take.
const LARGEST: usize = 4096;

static PREPARED: Mutex<Option<HashMap<Id, Prepared>>> = Mutex::new(None);

fn prepared() -> MutexGuard<'static, Option<HashMap<Id, Prepared>>> {
    PREPARED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change<T>(function: Handle, change: impl FnOnce(&mut Prepared) -> Result<T>) -> Result<T> {
    let id = arena::get::<Kernel>(function)?.here()?.id;
    change(prepared().get_or_insert_default().entry(id).or_default())
}

fn put(function: Handle, offset: i32, bytes: &[u8]) -> Result<()> {
    let offset = usize::try_from(offset).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    change(function, |prepared| {
        let end = offset.checked_add(bytes.len()).filter(|end| *end <= LARGEST);
        let end = end.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if prepared.parameters.len() < end {
            prepared.parameters.resize(end, 0);
        }
        prepared.parameters[offset..end].copy_from_slice(bytes);
        Ok(())
    })
}

fn run(function: Handle, width: i32, height: i32, stream: Handle) -> Result<()> {
    let side = |side: i32| u32::try_from(side).map_err(|_| CUDA_ERROR_INVALID_VALUE);
    let grid = [side(width)?, side(height)?, 1];
    let Prepared { block, shared, parameters } = change(function, |prepared| Ok(prepared.clone()))?;
    let bytes = parameters.len();
    let extra = [
        launch::BUFFER as *const c_void,
        parameters.as_ptr().cast(),
        launch::SIZE as *const c_void,
        (&raw const bytes).cast(),
        launch::END as *const c_void,
    ];
    launch::plain(function, grid, block, shared, stream, extra.as_ptr())
}

/// What another export returned.
fn other(code: i32) -> Result<()> {
    CuResult(code).ok()
}

/// A size as older programs have it; what is larger is the largest.
fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

exports! {
    call fn cuFuncSetBlockShape(function: Handle, x: i32, y: i32, z: i32) {
        let side = |side: i32| u32::try_from(side).ok().filter(|side| *side > 0).ok_or(CUDA_ERROR_INVALID_VALUE);
        let block = [side(x)?, side(y)?, side(z)?];
        change(function, |prepared| {
            prepared.block = block;
            Ok(())
        })
    }
    call fn cuFuncSetSharedSize(function: Handle, bytes: u32) {
        change(function, |prepared| {
            prepared.shared = bytes;
            Ok(())
        })
    }
    call fn cuParamSetSize(function: Handle, bytes: u32) {
        if bytes as usize > LARGEST {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        change(function, |prepared| {
            prepared.parameters.resize(bytes as usize, 0);
            Ok(())
        })
    }
    call fn cuParamSeti(function: Handle, offset: i32, value: u32) { put(function, offset, &value.to_ne_bytes()) }
    call fn cuParamSetf(function: Handle, offset: i32, value: f32) { put(function, offset, &value.to_ne_bytes()) }
    call fn cuParamSetv(function: Handle, offset: i32, value: In<u8>, bytes: u32) { put(function, offset, value.slice(bytes as usize)?) }
    call fn cuLaunch(function: Handle) { run(function, 1, 1, LEGACY) }
    call fn cuLaunchGrid(function: Handle, width: i32, height: i32) { run(function, width, height, LEGACY) }
    call fn cuLaunchGridAsync(function: Handle, width: i32, height: i32, stream: Handle) { run(function, width, height, stream) }

    ready fn cuDeviceTotalMem(out: Out<u32>, device: i32) { out.put(narrow(device::info(device)?.total_memory)) }
    ready fn cuMemGetInfo(free: Out<u32>, total: Out<u32>) {
        let (mut available, mut all) = (0, 0);
        other(memory::cuMemGetInfo_v2(Out(&raw mut available), Out(&raw mut all)))?;
        free.offer(narrow(available as u64));
        total.offer(narrow(all as u64));
        Ok(())
    }
    ready fn cuMemAllocHost(out: Out<u64>, bytes: u32) { other(memory::cuMemAllocHost_v2(out, bytes as usize)) }
    ready fn cuMemHostRegister(address: u64, bytes: usize, flags: u32) { other(memory::cuMemHostRegister_v2(address, bytes, flags)) }
    ready fn cuCtxCreate(out: Out<Handle>, flags: u32, device: i32) { other(context::cuCtxCreate_v2(out, flags, device)) }
    ready fn cuCtxDestroy(handle: Handle) { other(context::cuCtxDestroy_v2(handle)) }
    ready fn cuCtxPushCurrent(handle: Handle) { other(context::cuCtxPushCurrent_v2(handle)) }
    ready fn cuCtxPopCurrent(out: Out<Handle>) { other(context::cuCtxPopCurrent_v2(out)) }
    ready fn cuStreamDestroy(handle: Handle) { other(stream::cuStreamDestroy_v2(handle)) }
    ready fn cuLinkCreate(count: u32, options: In<i32>, values: In<usize>, out: Out<Handle>) {
        other(module::cuLinkCreate_v2(count, options, values, out))
    }
    ready fn cuLinkAddData(linker: Handle, kind: u32, data: In<u8>, size: usize, name: Text, count: u32, options: In<i32>, values: In<usize>) {
        other(module::cuLinkAddData_v2(linker, kind, data, size, name, count, options, values))
    }
    ready fn cuLinkAddFile(linker: Handle, kind: u32, path: Text, count: u32, options: In<i32>, values: In<usize>) {
        other(module::cuLinkAddFile_v2(linker, kind, path, count, options, values))
    }
}
