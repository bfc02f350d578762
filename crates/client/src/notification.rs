//! Callbacks for a program that has exceeded its budget of GPU memory.
//!
//! They are registered and never called: a program has no such budget of the driver's here. What it may have is set by whoever
//! runs it, and more than that is refused at once.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;

use crate::abi::{Handle, Out, Result};
use crate::device;
use crate::export::exports;

/// The devices of what is registered, by its handles.
static REGISTERED: Mutex<(usize, BTreeMap<usize, i32>)> = Mutex::new((0, BTreeMap::new()));

fn register(on: i32, call: *const c_void, out: Out<Handle>) -> Result<()> {
    device::info(on)?;
    out.check()?;
    if call.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.0 += 1;
    let handle = registered.0;
    registered.1.insert(handle, on);
    out.put(Handle(handle))
}

fn unregister(on: i32, handle: Handle) -> Result<()> {
    device::info(on)?;
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    match registered.1.get(&handle.0) {
        Some(known) if *known == on => {
            registered.1.remove(&handle.0).map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

exports! {
    ready fn cuDeviceRegisterAsyncNotification(device: i32, call: *const c_void, _data: *const c_void, out: Out<Handle>) {
        register(device, call, out)
    }
    ready fn cuDeviceUnregisterAsyncNotification(device: i32, handle: Handle) { unregister(device, handle) }
}
