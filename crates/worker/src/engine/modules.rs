//! Modules, kernels and globals, in the order in which the program asked for them.

use rekindle_cuda::{CUDA_ERROR_FILE_NOT_FOUND, CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS};
use rekindle_device::{Code, FunctionInfo, GpuKind, LoadError, Loaded, Result};
use rekindle_protocol::operation::{
    CodeSource, FunctionFound, FunctionGet, FunctionSet, GlobalGet, Id, ModuleLoad, ModuleLoaded,
};

use super::{Engine, FunctionObject, GlobalGiven, ModuleObject};
use crate::code::LoadedCode;

impl Engine {
    pub(super) fn load_module(&mut self, request: ModuleLoad<'_>, trailer: &[u8]) -> Result<ModuleLoaded> {
        let ModuleLoad { device, id, kind, source, options } = request;
        let device = usize::from(device);
        if !self.modules.is_free(id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.bind(device)?;
        let code = self.code_of(source, trailer)?;
        let loaded = self.context(device)?.device.module_load(code.code(), kind, &options);
        let Loaded { module: handle, log } = match loaded {
            Ok(loaded) => loaded,
            Err(LoadError { code, log }) => return Ok(ModuleLoaded { status: code.0, log }),
        };
        let loaded_at = self.next_history();
        let globals = Vec::new();
        self.modules.insert(
            id,
            ModuleObject { device, kind, options, code, handle, loaded_at, unloaded_at: None, globals },
        )?;
        Ok(ModuleLoaded { status: CUDA_SUCCESS.0, log })
    }

    fn code_of(&mut self, source: CodeSource<'_>, trailer: &[u8]) -> Result<LoadedCode> {
        match source {
            CodeSource::Trailer => Ok(LoadedCode::Owned(Code::new(trailer.to_vec()))),
            CodeSource::Shared { name, bytes } => {
                Ok(LoadedCode::Owned(Code::new(self.take_shared(name, bytes)?)))
            }
            CodeSource::File { path, offset, bytes } => {
                let mapped = self.code.map(path.as_ref(), offset, bytes).map_err(|error| {
                    log::warn!("cannot map code from {path}: {error}");
                    CUDA_ERROR_FILE_NOT_FOUND
                })?;
                Ok(LoadedCode::Mapped(mapped))
            }
        }
    }

    /// Reads a file that the client left in the run directory for the worker, and removes it.
    pub(super) fn take_shared(&mut self, name: &str, bytes: u64) -> Result<Vec<u8>> {
        let path = self.run_file(name).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let read = std::fs::read(&path);
        let _ = std::fs::remove_file(&path);
        match read {
            Ok(mut code) if code.len() as u64 >= bytes => {
                code.truncate(bytes as usize);
                Ok(code)
            }
            Ok(code) => {
                log::warn!("{} has {} bytes where {bytes} were expected", path.display(), code.len());
                Err(CUDA_ERROR_INVALID_VALUE)
            }
            Err(error) => {
                log::warn!("cannot read {}: {error}", path.display());
                Err(CUDA_ERROR_FILE_NOT_FOUND)
            }
        }
    }

    pub(super) fn unload_module(&mut self, id: Id) -> Result<()> {
        let mut module = self.modules.remove(id)?;
        self.functions.extract(|function| function.module == id);
        let device = self.on(module.device)?;
        // The emulated GPU puts a module wherever it is told to, whatever came before.
        let shapes_addresses = device.info().kind == GpuKind::Nvidia
            && device.globals(module.handle).is_ok_and(|globals| !globals.is_empty());
        device.module_unload(module.handle)?;
        if shapes_addresses {
            module.unloaded_at = Some(self.next_history());
            self.unloaded.push(module);
        }
        Ok(())
    }

    pub(super) fn get_function(&mut self, request: FunctionGet<'_>) -> Result<FunctionFound> {
        let FunctionGet { module: module_id, id, name } = request;
        if !self.functions.is_free(id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let module = self.modules.get(module_id)?;
        let (device, module) = (module.device, module.handle);
        let gpu = self.on(device)?;
        let handle = gpu.function(module, name)?;
        let info = gpu.function_info(handle)?;
        let function = FunctionObject {
            device,
            module: module_id,
            name: name.to_string(),
            handle,
            at: self.next_history(),
            attributes: Vec::new(),
            cache: None,
        };
        self.functions.insert(id, function)?;
        Ok(FunctionFound { info })
    }

    pub(super) fn names(&mut self, module: Id) -> Result<Vec<String>> {
        let module = self.modules.get(module)?;
        let (device, handle) = (module.device, module.handle);
        self.on(device)?.function_names(handle)
    }

    pub(super) fn set_function(&mut self, request: FunctionSet) -> Result<FunctionInfo> {
        let FunctionSet { id, attribute, value } = request;
        let function = self.functions.get(id)?;
        let (device, handle) = (function.device, function.handle);
        self.on(device)?.set_function_attribute(handle, attribute, value)?;
        let attributes = &mut self.functions.get_mut(id)?.attributes;
        attributes.retain(|row| row.0 != attribute);
        attributes.push((attribute, value));
        self.on(device)?.function_info(handle)
    }

    pub(super) fn set_cache(&mut self, id: Id, config: i32) -> Result<()> {
        let function = self.functions.get_mut(id)?;
        function.cache = Some(config);
        let (device, handle) = (function.device, function.handle);
        self.on(device)?.set_function_cache(handle, config)
    }

    pub(super) fn get_global(&mut self, request: GlobalGet<'_>) -> Result<(u64, u64)> {
        let module = self.modules.get(request.module)?;
        if let Some(given) = module.globals.iter().find(|given| given.name == request.name) {
            return Ok((given.address, given.bytes));
        }
        let (device, handle) = (module.device, module.handle);
        let (address, bytes) = self.on(device)?.global(handle, request.name)?;
        let given = GlobalGiven { name: request.name.to_string(), address, bytes, at: self.next_history() };
        self.modules.get_mut(request.module)?.globals.push(given);
        Ok((address, bytes))
    }

    /// A kernel's device and handle.
    pub(super) fn kernel(&self, id: Id) -> Result<(usize, rekindle_device::Function)> {
        let function = self.functions.get(id)?;
        Ok((function.device, function.handle))
    }
}
