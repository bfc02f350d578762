//! Modules, kernels and globals, in the order in which the program asked for them.

use std::sync::{Arc, OnceLock};

use rekindle_code::fatbin::is_fatbin;
use rekindle_cuda::{
    CUDA_ERROR_FILE_NOT_FOUND, CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND,
    CUDA_SUCCESS,
};
use rekindle_device::{
    Code, Device, Function, FunctionInfo, GpuKind, KernelSetting, KernelSettings, LinkInput, LoadError,
    Loaded, Module, ModuleKind, Result,
};
use rekindle_protocol::operation::{
    Answer, CodeSource, FunctionFound, FunctionGet, FunctionSet, GlobalGet, Id, ModuleLoad, ModuleLoaded,
    Origin,
};

use super::{
    Body, Client, FunctionObject, GlobalGiven, GlobalsBuffer, ModuleObject, ModuleWriteSets, Pieces,
};
use crate::code::LoadedCode;

/// The word of [`rekindle_device::Device::prepare`] for code that has to be compiled.
const PTX: &str = "ptx";

/// Code, which may have to be read first.
pub(super) fn read(code: &LoadedCode) -> Result<Code> {
    code.code().map_err(|error| {
        log::error!("code of the image cannot be read: {error}");
        CUDA_ERROR_INVALID_IMAGE
    })
}

impl Client {
    pub(super) fn load_module(&mut self, request: ModuleLoad<'_>, trailer: &[u8]) -> Result<ModuleLoaded> {
        let ModuleLoad { device, id, kind, source, options } = request;
        let device = usize::from(device);
        if !self.modules.is_free(id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.bind(device)?;
        let mut code = self.code_of(source, trailer)?;
        let given = code.clone();
        let mut log = String::new();
        let apart = match self.gpus.in_pieces {
            true => match self.take_apart(device, &code, &options)? {
                Err(PTX) => self.compile_apart(device, &mut code, &options, &mut log)?.map_err(Some),
                apart => apart.map_err(Some),
            },
            false => Err(None),
        };
        let turns = self.turns.clone();
        let mut turn = turns.take();
        let (body, whole) = match apart {
            Ok(pieces) => (Body::Pieces(pieces), None),
            Err(whole) => match self.context(device)?.device.module_load(read(&code)?, kind, &options) {
                Ok(Loaded { module, log: said }) => {
                    // Nobody has looked into its code.
                    self.may_print = true;
                    log = said;
                    (Body::Whole(module), whole.map(str::to_string))
                }
                Err(LoadError { code, log }) => return Ok(ModuleLoaded { status: code.0, log }),
            },
        };
        let loaded_at = turn.number();
        drop(turn);
        let module = ModuleObject {
            device,
            kind,
            options,
            code,
            body,
            loaded_at,
            unloaded_at: None,
            globals: Vec::new(),
            whole,
            write_sets: ModuleWriteSets::of(given),
        };
        self.modules.insert(id, module)?;
        if self.work_needs_requests() {
            self.load_kernels(id);
        }
        Ok(ModuleLoaded { status: CUDA_SUCCESS.0, log })
    }

    /// Compiles PTX once, so that what came out is taken apart, and kept in place of the PTX. What does not compile is
    /// left to the loading, which says why.
    fn compile_apart(
        &mut self,
        device: usize,
        code: &mut LoadedCode,
        options: &[(i32, u64)],
        log: &mut String,
    ) -> Result<std::result::Result<Pieces, &'static str>> {
        let given = read(code)?;
        let kind = if is_fatbin(given.bytes()) { LinkInput::FATBIN } else { LinkInput::PTX };
        let input = LinkInput { kind, name: "", bytes: given.bytes() };
        let (cubin, said) = match self.on(device)?.link(&[input], options) {
            Ok(compiled) => compiled,
            Err(LoadError { code, log }) => {
                log::info!("PTX of {} bytes is left to loading: {code}; {}", given.bytes().len(), log.trim());
                return Ok(Err(PTX));
            }
        };
        let compiled = LoadedCode::Owned(Code::new(cubin));
        let apart = self.take_apart(device, &compiled, options)?;
        if apart.is_ok() {
            (*code, *log) = (compiled, said);
        }
        Ok(apart)
    }

    fn code_of(&mut self, source: CodeSource<'_>, trailer: &[u8]) -> Result<LoadedCode> {
        match source {
            CodeSource::Trailer => Ok(LoadedCode::Owned(Code::new(trailer.to_vec()))),
            CodeSource::Shared { name, bytes } => {
                Ok(LoadedCode::Owned(Code::new(self.take_shared(name, bytes)?)))
            }
            CodeSource::File { path, offset, bytes } => {
                let mapped = self.gpus.code().map(path.as_ref(), offset, bytes).map_err(|error| {
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

    pub(super) fn unload_module(&mut self, origin: Origin, id: Id) -> Answer<()> {
        match self.unload(id) {
            Err(code) => Answer::Now(Err(code)),
            Ok((_, globals)) if globals.allocation == 0 => Answer::Now(Ok(())),
            // Kernels that write to them may be under way.
            Ok((device, globals)) => {
                self.when_idle(origin, device, move |client| client.give_globals(device, globals))
            }
        }
    }

    /// Gives the buffer of globals that is not needed any more, and its device.
    fn unload(&mut self, id: Id) -> Result<(usize, GlobalsBuffer)> {
        let turns = self.turns.clone();
        let mut module = self.modules.remove(id)?;
        self.functions.extract(|function| function.module == id);
        let index = module.device;
        let device = self.on(index)?;
        let handle = match &module.body {
            Body::Whole(handle) => *handle,
            Body::Pieces(pieces) => {
                let globals = pieces.globals;
                pieces.modules().try_for_each(|piece| device.module_unload(piece))?;
                return Ok((index, globals));
            }
        };
        // The emulated GPU puts a module wherever it is told to, whatever came before.
        let shapes_addresses = device.info().kind == GpuKind::Nvidia
            && device.globals(handle).is_ok_and(|globals| !globals.is_empty());
        let mut turn = turns.take();
        device.module_unload(handle)?;
        if shapes_addresses {
            module.unloaded_at = Some(turn.number());
            drop(turn);
            self.unloaded.push(module);
        }
        Ok((index, GlobalsBuffer::default()))
    }

    /// The code of all that an image has to have.
    pub(crate) fn codes(&self) -> Vec<LoadedCode> {
        let loaded = self.modules.iter().map(|(_, module)| module);
        loaded.chain(&self.unloaded).map(|module| module.code.clone()).collect()
    }

    /// What the devices have of modules that are whole.
    pub(crate) fn whole_modules(&self) -> Vec<(Arc<dyn Device>, Module)> {
        let whole = |module: &ModuleObject| {
            Some((self.context(module.device).ok()?.device.clone(), module.body.whole()?))
        };
        self.modules.iter().filter_map(|(_, module)| whole(module)).collect()
    }

    pub(super) fn get_function(&mut self, request: FunctionGet<'_>) -> Result<FunctionFound> {
        let FunctionGet { module: module_id, id, name } = request;
        if !self.functions.is_free(id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let module = self.modules.get(module_id)?;
        let (device, whole) = (module.device, module.body.whole());
        let is_loaded_later = module.kind == ModuleKind::Library && !self.work_needs_requests();
        let told = match whole {
            Some(_) => None,
            None => self.prepared(module_id)?.info(name),
        };
        let (handle, at, info) = match told {
            Some(info) if is_loaded_later => (None, 0, info),
            // What keeps it from being loaded is told to who uses it.
            Some(info) => (self.piece(module_id, name, &KernelSettings::default()).ok(), 0, info),
            None => {
                let (handle, at) = match whole {
                    Some(module) => self.function(device, module, name)?,
                    None => (self.piece(module_id, name, &KernelSettings::default())?, 0),
                };
                (Some(handle), at, self.on(device)?.function_info(handle)?)
            }
        };
        let function = FunctionObject {
            device,
            module: module_id,
            name: name.to_string(),
            handle,
            bank: self.bank(module_id, name)?,
            used: 0,
            at,
            settings: KernelSettings::default(),
            write_set: OnceLock::new(),
        };
        self.functions.insert(id, function)?;
        Ok(FunctionFound { info })
    }

    /// A kernel of a module that is whole, and when it was looked up.
    fn function(&mut self, device: usize, module: Module, name: &str) -> Result<(Function, u64)> {
        let turns = self.turns.clone();
        let mut turn = turns.take();
        Ok((self.on(device)?.function(module, name)?, turn.number()))
    }

    pub(super) fn names(&mut self, module: Id) -> Result<Vec<String>> {
        let object = self.modules.get(module)?;
        match (object.device, object.body.whole()) {
            (device, Some(handle)) => self.on(device)?.function_names(handle),
            (_, None) => Ok(self.prepared(module)?.kernels()),
        }
    }

    pub(super) fn set_function(&mut self, request: FunctionSet) -> Result<FunctionInfo> {
        let FunctionSet { id, attribute, value } = request;
        let (device, handle) = self.set_for_kernel(id, KernelSetting::Attribute(attribute, value))?;
        self.on(device)?.function_info(handle)
    }

    pub(super) fn set_cache(&mut self, id: Id, config: i32) -> Result<()> {
        self.set_for_kernel(id, KernelSetting::Cache(config)).map(drop)
    }

    /// Whether asking for this global changes nothing: it was asked for before, or lies in a buffer.
    pub(crate) fn knows_global(&self, request: &GlobalGet<'_>) -> bool {
        let Ok(module) = self.modules.get(request.module) else { return true };
        match &module.body {
            Body::Whole(_) => module.globals.iter().any(|given| given.name == request.name),
            Body::Pieces(pieces) => pieces.constants_told || pieces.is_without_constants(),
        }
    }

    pub(super) fn get_global(&mut self, request: GlobalGet<'_>) -> Result<(u64, u64)> {
        let module = self.modules.get(request.module)?;
        if let Some(given) = module.globals.iter().find(|given| given.name == request.name) {
            return Ok((given.address, given.bytes));
        }
        let (device, handle) = match &module.body {
            Body::Whole(handle) => (module.device, *handle),
            Body::Pieces(pieces) => {
                let start = pieces.globals.address;
                let prepared = self.prepared(request.module)?;
                let (offset, bytes) = prepared.global(request.name).ok_or(CUDA_ERROR_NOT_FOUND)?;
                if prepared.constants().is_some_and(|constants| constants.range.contains(&offset)) {
                    self.tell_constants(request.module)?;
                }
                return Ok((start + offset, bytes));
            }
        };
        let turns = self.turns.clone();
        let mut turn = turns.take();
        let (address, bytes) = self.on(device)?.global(handle, request.name)?;
        let given = GlobalGiven { name: request.name.to_string(), address, bytes, at: turn.number() };
        self.modules.get_mut(request.module)?.globals.push(given);
        Ok((address, bytes))
    }
}
