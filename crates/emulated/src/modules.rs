//! The modules of a device, their kernels, and linking.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use rekindle_code::fatbin::is_fatbin;
use rekindle_cuda::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_UNKNOWN,
};
use rekindle_device::{Function, LinkInput, LoadError, Module, Result};

use crate::function::Kernel;
use crate::module::{LoadedModule, register_limit};
use crate::{fatbin, image};

#[derive(Default)]
pub(crate) struct Modules {
    modules: HashMap<u64, Arc<LoadedModule>>,
    kernels: HashMap<u64, Kernel>,
    /// The handle of a module's entry, once asked for.
    handles: HashMap<(u64, usize), u64>,
    next: u64,
}

impl Modules {
    pub fn add(&mut self, module: LoadedModule) -> Module {
        self.next += 1;
        self.modules.insert(self.next, Arc::new(module));
        Module(self.next)
    }

    /// Work that uses the module keeps it until it is done.
    pub fn remove(&mut self, module: Module) -> Result<Arc<LoadedModule>> {
        let removed = self.modules.remove(&module.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.handles.retain(|(of, _), handle| {
            if *of == module.0 {
                self.kernels.remove(handle);
            }
            *of != module.0
        });
        Ok(removed)
    }

    pub fn get(&self, module: Module) -> Result<&Arc<LoadedModule>> {
        self.modules.get(&module.0).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn function(&mut self, module: Module, name: &str) -> Result<Function> {
        let loaded = self.get(module)?;
        let entry = loaded.module.entries().iter().position(|entry| entry.name == name);
        let entry = entry.ok_or(CUDA_ERROR_NOT_FOUND)?;
        if let Some(handle) = self.handles.get(&(module.0, entry)) {
            return Ok(Function(*handle));
        }
        let kernel = Kernel { module: Arc::clone(loaded), entry };
        self.next += 1;
        self.kernels.insert(self.next, kernel);
        self.handles.insert((module.0, entry), self.next);
        Ok(Function(self.next))
    }

    pub fn kernel(&self, function: Function) -> Result<&Kernel> {
        self.kernels.get(&function.0).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

/// Links PTX into a fatbin that holds all of it, after checking that it fits together.
pub(crate) fn link(
    inputs: &[LinkInput<'_>],
    options: &[(i32, u64)],
) -> std::result::Result<(Vec<u8>, String), LoadError> {
    let mut texts: Vec<Cow<'_, [u8]>> = Vec::new();
    let mut log = String::new();
    for input in inputs {
        let named =
            |error: LoadError| LoadError { code: error.code, log: format!("{}: {}", input.name, error.log) };
        match input.kind {
            LinkInput::PTX => {
                image::parse(input.bytes).map_err(named)?;
                texts.push(Cow::Borrowed(input.bytes));
            }
            LinkInput::CUBIN | LinkInput::FATBIN => texts.extend(image::texts(input.bytes).map_err(named)?),
            LinkInput::OBJECT | LinkInput::LIBRARY if is_fatbin(input.bytes) => {
                let log = format!(
                    "could not find a fatbin in '{}', which is none of the host's objects",
                    input.name
                );
                return Err(LoadError { code: CUDA_ERROR_UNKNOWN, log });
            }
            LinkInput::OBJECT | LinkInput::LIBRARY => {
                let found = image::texts_inside(input.bytes).map_err(named)?;
                if found.is_empty() {
                    log += &format!("warning: {} has no PTX in it and adds nothing\n", input.name);
                }
                texts.extend(found);
            }
            kind => {
                let log =
                    format!("{}: inputs of kind {kind} cannot be linked here; hand over PTX", input.name);
                return Err(LoadError { code: CUDA_ERROR_NOT_SUPPORTED, log });
            }
        }
    }
    if texts.is_empty() {
        return Err(LoadError { code: CUDA_ERROR_INVALID_VALUE, log: "there is nothing to link".to_owned() });
    }
    image::module(&texts)?;
    let texts: Vec<&[u8]> = texts.iter().map(AsRef::as_ref).collect();
    Ok((fatbin::write(&texts, register_limit(options)), log))
}
