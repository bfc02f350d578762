//! Modules that were taken apart: their globals lie in a buffer of the program's, and a kernel is loaded when it is first
//! asked for, alone.
//!
//! So nothing of such a module depends on what else was loaded before. A restored program has its globals with its other
//! buffers, and its kernels are loaded when they are first used.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_VALUE, CuResult};
use rekindle_device::{
    Device, Function, FunctionInfo, KernelSetting, KernelSettings, LoadError, Module, Piece, PreparedCode,
    Result,
};
use rekindle_protocol::operation::Id;
use serde::{Deserialize, Serialize};

use super::modules::read;
use super::{Client, FunctionObject, KernelKey, Turn};
use crate::code::LoadedCode;
use crate::image;

/// At least; what small allocations are aligned to.
const ALIGNMENT: u64 = 256;

/// Where a module's globals lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GlobalsBuffer {
    /// What was allocated for it; 0 where there are no globals.
    pub allocation: u64,
    /// In it, as aligned as the globals ask for.
    pub address: u64,
    pub bytes: u64,
}

pub(crate) struct Pieces {
    /// None until it is needed: a restored module is taken apart once more then.
    prepared: Option<Arc<dyn PreparedCode>>,
    pub globals: GlobalsBuffer,
    /// The program knows where its constants are.
    pub constants_told: bool,
    loaded: HashMap<String, LoadedPiece>,
    /// Pieces that an image brought, by their kernels; cut before, and loaded when they are needed.
    cut: HashMap<String, Arc<Piece>>,
}

#[derive(Clone)]
pub(crate) struct LoadedPiece {
    pub module: Module,
    pub function: Function,
    pub settings: KernelSettings,
    pub piece: Arc<Piece>,
    /// Its turn.
    pub at: u64,
    /// It may print.
    pub prints: bool,
}

/// What the device has of a module.
pub(crate) enum Body {
    Whole(Module),
    Pieces(Pieces),
}

impl Pieces {
    /// Whether it is known that it has no constants.
    pub(super) fn is_without_constants(&self) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| prepared.constants().is_none())
    }

    /// Those of an image, of which nothing is loaded.
    pub(crate) fn restored(globals: GlobalsBuffer, constants_told: bool) -> Pieces {
        Pieces { prepared: None, globals, constants_told, loaded: HashMap::new(), cut: HashMap::new() }
    }

    /// What its code says of a kernel, if it was taken apart here.
    pub(super) fn info(&self, kernel: &str) -> Option<FunctionInfo> {
        self.prepared.as_ref()?.info(kernel)
    }

    /// A piece as it was cut before.
    pub(crate) fn bring(&mut self, kernel: &str, piece: Arc<Piece>) {
        self.cut.insert(kernel.to_string(), piece);
    }

    /// The code of a piece, if it was cut here or before.
    pub(crate) fn code(&self, kernel: &str) -> Option<&Arc<Piece>> {
        self.loaded.get(kernel).map(|loaded| &loaded.piece).or_else(|| self.cut.get(kernel))
    }

    /// A piece that was cut before and is not loaded.
    pub(crate) fn not_loaded(&self, kernel: &str) -> Option<&Arc<Piece>> {
        self.cut.get(kernel)
    }

    fn add(&mut self, kernel: &str, loaded: LoadedPiece) {
        self.cut.remove(kernel);
        self.loaded.insert(kernel.to_string(), loaded);
    }

    /// The module that a kernel was loaded as.
    pub(super) fn piece(&self, kernel: &str) -> Option<Module> {
        self.loaded.get(kernel).map(|loaded| loaded.module)
    }

    /// All that were cut here or before, by their kernels.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = (&String, &Arc<Piece>)> {
        self.loaded.iter().map(|(name, loaded)| (name, &loaded.piece)).chain(&self.cut)
    }

    pub(crate) fn modules(&self) -> impl Iterator<Item = Module> + '_ {
        self.loaded.values().map(|loaded| loaded.module)
    }
}

impl Body {
    pub(crate) fn whole(&self) -> Option<Module> {
        match self {
            Body::Whole(module) => Some(*module),
            Body::Pieces(_) => None,
        }
    }

    pub(crate) fn pieces(&self) -> Option<&Pieces> {
        match self {
            Body::Whole(_) => None,
            Body::Pieces(pieces) => Some(pieces),
        }
    }
}

impl Client {
    /// Takes code apart and makes its globals, if that is asked for; a word where it cannot be.
    pub(super) fn take_apart(
        &mut self,
        device: usize,
        code: &LoadedCode,
        options: &[(i32, u64)],
    ) -> Result<std::result::Result<Pieces, &'static str>> {
        let prepared = match self.context(device)?.device.prepare(&read(code)?, options) {
            Ok(prepared) => prepared,
            Err(word) => return Ok(Err(word)),
        };
        let bytes = prepared.globals_bytes();
        let mut globals = GlobalsBuffer { bytes, ..GlobalsBuffer::default() };
        if bytes > 0 {
            let alignment = prepared.globals_alignment().max(ALIGNMENT);
            globals.allocation = self.allocate(device, bytes.saturating_add(alignment))?;
            if let Err(code) = self.back_at(globals.allocation) {
                self.give_globals(device, globals)?;
                return Err(code);
            }
            // Not where it begins: no address of a global can be freed.
            globals.address = (globals.allocation + 1).next_multiple_of(alignment);
            let filled =
                image::upload(self, device, globals.address, bytes, &prepared.initial(globals.address));
            if let Err(code) = filled {
                self.give_globals(device, globals)?;
                return Err(code);
            }
        }
        Ok(Ok(Pieces { prepared: Some(prepared), ..Pieces::restored(globals, false) }))
    }

    /// Gives the buffer of globals back that nobody uses any more.
    pub(super) fn give_globals(&mut self, device: usize, globals: GlobalsBuffer) -> Result<()> {
        if globals.allocation == 0 {
            return Ok(());
        }
        self.bind(device)?;
        let heap = self.heap(device)?;
        heap.retire(globals.allocation)?;
        heap.release(globals.allocation)
    }

    /// The code of a module in pieces, taken apart once more where it was not yet in this worker.
    pub(super) fn prepared(&mut self, module: Id) -> Result<Arc<dyn PreparedCode>> {
        let object = self.modules.get(module)?;
        let Body::Pieces(pieces) = &object.body else { return Err(CUDA_ERROR_INVALID_VALUE) };
        if let Some(prepared) = &pieces.prepared {
            return Ok(prepared.clone());
        }
        let (code, options, bytes) = (read(&object.code)?, object.options.clone(), pieces.globals.bytes);
        let gpu = self.context(object.device)?.device.clone();
        let prepared = gpu.prepare(&code, &options).ok();
        let prepared = prepared.filter(|prepared| prepared.globals_bytes() == bytes);
        let prepared = prepared.ok_or_else(|| {
            log::error!("module {module} cannot be taken apart as it was when the image was taken");
            CUDA_ERROR_INVALID_IMAGE
        })?;
        if let Body::Pieces(pieces) = &mut self.modules.get_mut(module)?.body {
            pieces.prepared = Some(prepared.clone());
        }
        Ok(prepared)
    }

    /// Takes over a piece that was loaded beside the program, if its module is still there.
    pub(crate) fn adopt(&mut self, gpu: &dyn Device, kernel: &KernelKey) {
        let Some(loaded) = self.turns.take().claim(kernel) else { return };
        let (module, name) = kernel;
        self.may_print |= loaded.prints;
        match self.modules.get_mut(*module).map(|module| &mut module.body) {
            Ok(Body::Pieces(pieces)) => pieces.add(name, loaded),
            _ => {
                if let Err(code) = gpu.module_unload(loaded.module) {
                    log::warn!("a kernel of a module that is gone stays loaded: {code}");
                }
            }
        }
    }

    /// A kernel of a module in pieces, loaded with these settings if it is not yet.
    pub(super) fn piece(&mut self, module: Id, name: &str, settings: &KernelSettings) -> Result<Function> {
        let turns = self.turns.clone();
        let mut turn = turns.take();
        let beside = turn.claim(&(module, name.to_string()));
        self.may_print |= beside.as_ref().is_some_and(|loaded| loaded.prints);
        if let Some(loaded) = beside
            && let Body::Pieces(pieces) = &mut self.modules.get_mut(module)?.body
        {
            pieces.add(name, loaded);
        }
        let object = self.modules.get(module)?;
        let Body::Pieces(pieces) = &object.body else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let (device, globals) = (object.device, pieces.globals.address);
        if let Some(loaded) = pieces.loaded.get(name) {
            let missing: Vec<_> = settings.all().filter(|setting| !loaded.settings.has(*setting)).collect();
            let mut function = loaded.function;
            for setting in missing {
                function = self.set_piece(module, name, setting)?;
            }
            return Ok(function);
        }
        let cut = pieces.cut.get(name).cloned();
        self.bind(device)?;
        let gpu = self.context(device)?.device.clone();
        let piece = match cut {
            Some(piece) => piece,
            None => Arc::new(self.prepared(module)?.piece(name, globals)?),
        };
        let loaded = load(&mut turn, &*gpu, (name, piece, settings))?;
        let function = loaded.function;
        self.may_print |= loaded.prints;
        if let Body::Pieces(pieces) = &mut self.modules.get_mut(module)?.body {
            pieces.add(name, loaded);
        }
        Ok(function)
    }

    /// Sets something for a loaded piece. It may be another one after that.
    fn set_piece(&mut self, module: Id, name: &str, setting: KernelSetting) -> Result<Function> {
        let object = self.modules.get(module)?;
        let device = object.device;
        let loaded = object.body.pieces().and_then(|pieces| pieces.loaded.get(name));
        let loaded = loaded.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // Libraries set the same before each launch.
        if loaded.settings.has(setting) {
            return Ok(loaded.function);
        }
        let before = (loaded.module, loaded.function);
        let gpu = self.on(device)?;
        let after = gpu.piece_set(before, setting).map_err(|error| refused(name, error))?;
        if let Body::Pieces(pieces) = &mut self.modules.get_mut(module)?.body
            && let Some(loaded) = pieces.loaded.get_mut(name)
        {
            (loaded.module, loaded.function) = after;
            loaded.settings.set(setting);
        }
        if after != before {
            let same = |function: &&mut FunctionObject| function.module == module && function.name == name;
            for function in self.functions.values_mut().filter(same) {
                function.handle = function.handle.map(|_| after.1);
            }
        }
        Ok(after.1)
    }

    /// Sets something for a kernel, as the program wants it from now on.
    pub(super) fn set_for_kernel(&mut self, id: Id, setting: KernelSetting) -> Result<(usize, Function)> {
        let (device, handle) = self.kernel(id)?;
        let function = self.functions.get(id)?;
        let (module, name) = (function.module, function.name.clone());
        let handle = match self.modules.get(module)?.body {
            Body::Whole(_) => setting.apply(self.on(device)?, handle).map(|()| handle)?,
            Body::Pieces(_) => self.set_piece(module, &name, setting)?,
        };
        self.functions.get_mut(id)?.settings.set(setting);
        Ok((device, handle))
    }

    /// A kernel's device and handle; loaded now, with what the program has set for it, if it is not yet.
    pub(crate) fn kernel(&mut self, id: Id) -> Result<(usize, Function)> {
        let function = self.functions.get(id)?;
        let device = function.device;
        if let Some(handle) = function.handle {
            return Ok((device, handle));
        }
        let (module, name, settings) = (function.module, function.name.clone(), function.settings.clone());
        let handle = self.piece(module, &name, &settings)?;
        let bank = self.bank(module, &name)?;
        let function = self.functions.get_mut(id)?;
        (function.handle, function.bank) = (Some(handle), bank);
        Ok((device, handle))
    }

    /// When a kernel was looked up in a module that is whole, or its piece loaded; 0: it is not loaded.
    pub(crate) fn turn(&self, function: &FunctionObject) -> Result<u64> {
        Ok(match &self.modules.get(function.module)?.body {
            Body::Whole(_) => function.at,
            Body::Pieces(pieces) => pieces.loaded.get(&function.name).map_or(0, |loaded| loaded.at),
        })
    }

    /// Loads a kernel of a module in pieces as it was loaded before, at this turn.
    pub(crate) fn repeat(&mut self, id: Id, at: u64) -> Result<()> {
        self.kernel(id)?;
        let function = self.functions.get(id)?;
        if let Body::Pieces(pieces) = &mut self.modules.get_mut(function.module)?.body
            && let Some(loaded) = pieces.loaded.get_mut(&function.name)
        {
            loaded.at = at;
        }
        Ok(())
    }

    /// Where the globals lie that a kernel can reach without being told of them; none for a module that is whole.
    pub(crate) fn globals_of(&self, function: Id) -> Option<Range<u64>> {
        let module = self.functions.get(function).ok()?.module;
        let globals = self.modules.get(module).ok()?.body.pieces()?.globals;
        (globals.bytes > 0).then(|| globals.address..globals.address + globals.bytes)
    }
}

/// Has the device load a piece.
pub(crate) fn load(
    turn: &mut Turn<'_>,
    gpu: &dyn Device,
    (kernel, piece, settings): (&str, Arc<Piece>, &KernelSettings),
) -> Result<LoadedPiece> {
    let loaded = gpu.piece_load(kernel, &piece, settings);
    let (module, function) = loaded.map_err(|error| refused(kernel, error))?;
    // So its code calls what the driver has for `printf`.
    let prints = memchr::memmem::find(piece.code.bytes(), b"vprintf").is_some();
    Ok(LoadedPiece { module, function, settings: settings.clone(), piece, at: turn.number(), prints })
}

fn refused(name: &str, error: LoadError) -> CuResult {
    let LoadError { code, log } = error;
    log::error!("the piece with kernel {name} does not load: {code}; {}", log.trim());
    code
}
