//! Modules: code loaded on one device.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::ModuleKind;
use rekindle_protocol::operation::{FunctionNames, GlobalGet, Id, ModuleUnload};

use crate::abi::{Handle, In, Out, Result, Text};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::{context, lane, memory};

use super::code::Code;
use super::kernel::{Kernel, Owner};
use super::options::Options;

pub struct Module {
    pub id: Id,
    pub device: u8,
    /// The library that this is a part of: not to be unloaded alone.
    pub library: Option<Handle>,
    /// Functions that the program has asked for.
    functions: Mutex<HashMap<String, Handle>>,
}

impl Object for Module {
    const KIND: Kind = Kind::Module;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

impl Module {
    pub fn new(id: Id, device: u8, library: Option<Handle>) -> Module {
        Module { id, device, library, functions: Mutex::default() }
    }

    fn function(&self, own: Handle, name: &str) -> Result<Handle> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = functions.get(name) {
            return Ok(*handle);
        }
        let owner = Owner::Module { id: self.id, device: self.device };
        let handle = arena::insert(Kernel::find(owner, own, name, self.device)?)?;
        functions.insert(name.to_owned(), handle);
        Ok(handle)
    }
}

/// All functions of a module, in its own order.
pub fn functions(handle: Handle) -> Result<Vec<Handle>> {
    let module = arena::get::<Module>(handle)?;
    let names = lane::ask(&FunctionNames { module: module.id })?;
    names.iter().map(|name| module.function(handle, name)).collect()
}

fn load(out: Out<Handle>, code: &Code, options: &Options) -> Result<()> {
    out.check()?;
    let device = context::device()?;
    let id = super::load(device, ModuleKind::Module, code, options)?;
    out.put(arena::insert(Module::new(id, device, None))?)
}

exports! {
    call fn cuModuleLoad(out: Out<Handle>, path: Text) { load(out, &Code::read(path.get()?)?, &Options::default()) }
    call fn cuModuleLoadData(out: Out<Handle>, image: usize) { load(out, &Code::at(image)?, &Options::default()) }
    call fn cuModuleLoadDataEx(out: Out<Handle>, image: usize, count: u32, options: In<i32>, values: In<usize>) {
        load(out, &Code::at(image)?, &Options::new(count, options, values)?)
    }
    call fn cuModuleLoadFatBinary(out: Out<Handle>, image: usize) { load(out, &Code::at(image)?, &Options::default()) }
    call fn cuModuleUnload(handle: Handle) {
        if arena::get::<Module>(handle)?.library.is_some() {
            return Err(rekindle_cuda::CUDA_ERROR_NOT_PERMITTED);
        }
        let module = arena::remove::<Module>(handle)?;
        for (_, function) in module.functions.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            arena::remove::<Kernel>(function)?;
        }
        lane::ask(&ModuleUnload { id: module.id })
    }
    call fn cuModuleGetFunction(out: Out<Handle>, module: Handle, name: Text) {
        out.check()?;
        out.put(arena::get::<Module>(module)?.function(module, name.get()?)?)
    }
    call fn cuModuleGetFunctionCount(out: Out<u32>, module: Handle) {
        out.put(lane::ask(&FunctionNames { module: arena::get::<Module>(module)?.id })?.len() as u32)
    }
    call fn cuModuleEnumerateFunctions(out: Out<Handle>, count: u32, handle: Handle) {
        let module = arena::get::<Module>(handle)?;
        let names = lane::ask(&FunctionNames { module: module.id })?;
        if count == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        out.check()?;
        let functions = names.iter().take(count as usize).map(|name| module.function(handle, name));
        out.fill(count as usize, functions.collect::<Result<Vec<_>>>()?);
        Ok(())
    }
    call fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) {
        let module = arena::get::<Module>(module)?;
        let (at, length) = lane::ask(&GlobalGet { module: module.id, name: name.get()? })?;
        memory::note_global(module.device, at, length);
        address.offer(at);
        bytes.offer(length as usize);
        Ok(())
    }
    ready fn cuModuleGetLoadingMode(out: Out<u32>) {
        const LAZY: u32 = 2;
        out.put(LAZY)
    }
}
