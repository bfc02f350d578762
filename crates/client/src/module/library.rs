//! Libraries: code for every device, loaded on each when it is first used there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::ModuleKind;
use rekindle_protocol::operation::{ContextOpen, FunctionNames, GlobalGet, Id, ModuleUnload};

use crate::abi::{Handle, In, Out, Result, Text};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::{context, lane, memory};

use super::code::Code as Bytes;
use super::kernel::{Kernel, Owner};
use super::options::Options;
use super::single::Module;

pub struct Library {
    code: Arc<Code>,
    kernels: Mutex<HashMap<String, Handle>>,
    modules: Mutex<HashMap<u8, Handle>>,
}

/// A library's code and the modules that it has become.
pub struct Code {
    bytes: Bytes,
    options: Vec<(i32, u64)>,
    loaded: Mutex<HashMap<u8, Id>>,
}

impl Object for Library {
    const KIND: Kind = Kind::Library;
    fn device(&self) -> Option<u8> {
        None
    }
}

impl Code {
    /// The module on a device.
    pub fn on(&self, device: u8) -> Result<Id> {
        self.load(device, &Options::of_scalars(self.options.clone()))
    }

    fn load(&self, device: u8, options: &Options) -> Result<Id> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = loaded.get(&device) {
            return Ok(*id);
        }
        let id = super::load(device, ModuleKind::Library, &self.bytes, options)?;
        loaded.insert(device, id);
        Ok(id)
    }
}

/// The device that a library is looked at on: the current context's, or the first.
fn device() -> Result<u8> {
    match context::current_if_any() {
        Some(context) => context.usable().map(|()| context.device),
        None => {
            lane::ask(&ContextOpen { device: 0 })?;
            Ok(0)
        }
    }
}

/// `CU_LIBRARY_BINARY_IS_PRESERVED`.
const PRESERVED: u32 = 1;

fn load(out: Out<Handle>, bytes: Bytes, options: &Options) -> Result<()> {
    out.check()?;
    let code = Arc::new(Code { bytes, options: options.scalars().to_vec(), loaded: Mutex::default() });
    code.load(device()?, options)?;
    out.put(arena::insert(Library { code, kernels: Mutex::default(), modules: Mutex::default() })?)
}

impl Library {
    fn kernel(&self, own: Handle, name: &str) -> Result<Handle> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = kernels.get(name) {
            return Ok(*handle);
        }
        let owner = Owner::Library(self.code.clone());
        let handle = arena::insert(Kernel::find(owner, own, name, device()?)?)?;
        kernels.insert(name.to_owned(), handle);
        Ok(handle)
    }
}

exports! {
    call fn cuLibraryLoadData(out: Out<Handle>, code: usize, options: In<i32>, values: In<usize>, count: u32, library_options: In<u32>, library_values: In<usize>, library_count: u32) {
        let wanted = library_options.slice(library_count as usize)?;
        let values_given = if library_values.is_null() { &[] } else { library_values.slice(library_count as usize)? };
        // A value that is missing means that the option is on.
        let preserved = wanted.iter().enumerate().any(|(i, o)| *o == PRESERVED && values_given.get(i).is_none_or(|v| *v != 0));
        let code = Bytes::at(code)?;
        let code = if preserved || code.file().is_some() { code } else { code.into_owned() };
        load(out, code, &Options::new(count, options, values)?)
    }
    call fn cuLibraryLoadFromFile(out: Out<Handle>, path: Text, options: In<i32>, values: In<usize>, count: u32, _library_options: In<u32>, _library_values: In<usize>, _library_count: u32) {
        load(out, Bytes::read(path.get()?)?, &Options::new(count, options, values)?)
    }
    call fn cuLibraryUnload(handle: Handle) {
        let library = arena::remove::<Library>(handle)?;
        for (_, kernel) in library.kernels.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            arena::remove::<Kernel>(kernel)?;
        }
        for (_, module) in library.modules.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            // A device's reset may have ended it already.
            let _ = arena::remove::<Module>(module);
        }
        for (_, id) in library.code.loaded.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            // The same.
            let _ = lane::ask(&ModuleUnload { id });
        }
        Ok(())
    }
    call fn cuLibraryGetKernel(out: Out<Handle>, library: Handle, name: Text) {
        out.check()?;
        out.put(arena::get::<Library>(library)?.kernel(library, name.get()?)?)
    }
    call fn cuLibraryGetKernelCount(out: Out<u32>, library: Handle) {
        let module = arena::get::<Library>(library)?.code.on(device()?)?;
        out.put(lane::ask(&FunctionNames { module })?.len() as u32)
    }
    call fn cuLibraryEnumerateKernels(out: Out<Handle>, count: u32, handle: Handle) {
        let library = arena::get::<Library>(handle)?;
        if count == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        out.check()?;
        let names = lane::ask(&FunctionNames { module: library.code.on(device()?)? })?;
        let kernels = names.iter().take(count as usize).map(|name| library.kernel(handle, name));
        out.fill(count as usize, kernels.collect::<Result<Vec<_>>>()?);
        Ok(())
    }
    call fn cuLibraryGetModule(out: Out<Handle>, handle: Handle) {
        out.check()?;
        let library = arena::get::<Library>(handle)?;
        let device = context::device()?;
        let id = library.code.on(device)?;
        let mut modules = library.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(&device) {
            return out.put(*module);
        }
        let module = arena::insert(Module::new(id, device, Some(handle)))?;
        modules.insert(device, module);
        out.put(module)
    }
    call fn cuLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: Handle, name: Text) {
        let library = arena::get::<Library>(library)?;
        let device = context::device()?;
        let (at, length) = lane::ask(&GlobalGet { module: library.code.on(device)?, name: name.get()? })?;
        memory::note_global(device, at, length);
        address.offer(at);
        bytes.offer(length as usize);
        Ok(())
    }
    call fn cuLibraryGetManaged(_address: Out<u64>, _bytes: Out<usize>, library: Handle, name: Text) {
        arena::get::<Library>(library)?;
        name.get()?;
        Err(CUDA_ERROR_NOT_FOUND)
    }
    ready fn cuLibraryGetUnifiedFunction(_out: Out<Handle>, library: Handle, _name: Text) {
        arena::get::<Library>(library)?;
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
}
