//! CUDA IPC: memory and events that processes of one program share. Handles are made and understood by the workers.

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN};
use rekindle_protocol::ipc::HANDLE_BYTES;
use rekindle_protocol::operation::{
    IpcEventExport, IpcEventOpen, IpcMemoryClose, IpcMemoryExport, IpcMemoryOpen,
};

use crate::abi::{Handle, Out, Result};
use crate::event::Event;
use crate::export::exports;
use crate::memory::{self, Purpose};
use crate::{arena, context, event, lane};

/// `CUipcMemHandle` and `CUipcEventHandle`, which C passes by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle([u8; HANDLE_BYTES]);

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which is asked for always.
const LAZY_PEER_ACCESS: u32 = 1;

fn put(out: Out<IpcHandle>, encoded: Vec<u8>) -> Result<()> {
    out.put(IpcHandle(encoded.try_into().map_err(|_| CUDA_ERROR_UNKNOWN)?))
}

/// Memory of `cuMemAlloc` alone, as with the driver.
fn export(out: Out<IpcHandle>, address: u64) -> Result<()> {
    out.check()?;
    let found = memory::find(address).filter(|allocation| allocation.purpose == Purpose::Device);
    let allocation = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    put(out, lane::ask(&IpcMemoryExport { device: allocation.device, address: allocation.address })?)
}

fn open(out: Out<u64>, handle: &IpcHandle, flags: u32) -> Result<()> {
    out.check()?;
    if flags != LAZY_PEER_ACCESS {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let device = context::device()?;
    let (address, bytes) = lane::ask(&IpcMemoryOpen { device, handle: &handle.0 })?;
    if memory::at(address).is_none() {
        memory::note(address, bytes, Purpose::Imported)?;
    }
    out.put(address)
}

fn close(address: u64) -> Result<()> {
    let is_import = |allocation: &memory::Allocation| allocation.purpose == Purpose::Imported;
    let allocation = memory::at(address).filter(is_import).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if lane::ask(&IpcMemoryClose { device: allocation.device, address, all: false })? {
        memory::take(address, is_import)?;
    }
    Ok(())
}

exports! {
    call fn cuIpcGetMemHandle(out: Out<IpcHandle>, address: u64) { export(out, address) }
    call fn cuIpcOpenMemHandle(out: Out<u64>, handle: IpcHandle, flags: u32) { open(out, &handle, flags) }
    call fn cuIpcOpenMemHandle_v2(out: Out<u64>, handle: IpcHandle, flags: u32) { open(out, &handle, flags) }
    call fn cuIpcCloseMemHandle(address: u64) { close(address) }
    call fn cuIpcGetEventHandle(out: Out<IpcHandle>, event: Handle) {
        out.check()?;
        let event = arena::get::<Event>(event)?;
        if !event.is_interprocess() {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        put(out, lane::ask(&IpcEventExport { event: event.id })?)
    }
    call fn cuIpcOpenEventHandle(out: Out<Handle>, handle: IpcHandle) {
        out.check()?;
        let device = context::device()?;
        let id = event::new_id();
        lane::ask(&IpcEventOpen { device, event: id, handle: &handle.0 })?;
        out.put(arena::insert(Event::of_others(id, device))?)
    }
}
