//! Loaded code: modules and libraries, their kernels and variables.
//!
//! The driver knows modules and libraries by different handles; the table here says which of the two a handle is,
//! and keeps the code that it was loaded from.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rekindle_code::{fatbin, is_whole};
use rekindle_cuda::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND,
};
use rekindle_device::{
    Code, Function, FunctionInfo, Global, LinkInput, LoadError, Loaded, Module, ModuleKind, Parameter, Result,
};

use crate::driver::{Driver, call};
use crate::jit::JitOptions;
use crate::variables::{Variables, variables};

/// `CU_LIBRARY_BINARY_IS_PRESERVED`: the driver need not copy code that we keep.
const LIBRARY_BINARY_IS_PRESERVED: i32 = 1;
const FUNCTION_ATTRIBUTES: i32 = 16;
/// The wrapper that nvcc puts around a fatbin; it holds pointers, which mean nothing in this process.
const FATBIN_WRAPPER: u32 = 0x4662_43b1;
const ELF: &[u8] = b"\x7fELF";

struct Entry {
    kind: ModuleKind,
    code: Code,
    /// A library that gave no kernel and no variable is not loaded yet: its variables hold what the code says.
    used: AtomicBool,
    variables: OnceLock<(Variables, bool)>,
    /// Kept for [`JitOptions`]'s reason.
    _options: Option<JitOptions>,
}

impl Entry {
    /// The names of its variables, and whether all of the code could be searched.
    fn variables(&self, capability: u32) -> &(Variables, bool) {
        self.variables.get_or_init(|| variables(self.code.bytes(), capability))
    }
}

/// The modules and libraries of one context.
pub struct Modules {
    driver: Arc<Driver>,
    capability: u32,
    loaded: Mutex<HashMap<u64, Arc<Entry>>>,
}

impl Modules {
    pub fn new(driver: Arc<Driver>, capability: (u32, u32)) -> Modules {
        Modules { driver, capability: capability.0 * 10 + capability.1, loaded: Mutex::default() }
    }

    fn entry(&self, module: Module) -> Result<Arc<Entry>> {
        self.loaded.lock().get(&module.0).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn load(
        &self,
        code: Code,
        kind: ModuleKind,
        options: &[(i32, u64)],
    ) -> std::result::Result<Loaded, LoadError> {
        let code = readable(code).ok_or_else(|| LoadError {
            code: CUDA_ERROR_INVALID_IMAGE,
            log: "the code is neither a whole cubin, a whole fatbin nor PTX".to_owned(),
        })?;
        // A cubin is not compiled, so there is nothing to log.
        let mut options = (!code.bytes().starts_with(ELF)).then(|| JitOptions::new(options));
        let (keys, values, count) = match &mut options {
            Some(options) => (options.keys.as_mut_ptr(), options.values.as_mut_ptr(), options.count()),
            None => (std::ptr::null_mut(), std::ptr::null_mut(), 0),
        };
        let image = code.bytes().as_ptr().cast();
        let mut handle = 0;
        let loaded = match kind {
            // SAFETY: `image` was checked to end within the code (or with a NUL), which is kept; the options are as
            // many as counted, and their buffers are kept too.
            ModuleKind::Module => unsafe {
                call!(self.driver, cuModuleLoadDataEx(&mut handle, image, count, keys, values))
            },
            ModuleKind::Library => {
                let (mut key, mut value) = (LIBRARY_BINARY_IS_PRESERVED, 1);
                // SAFETY: as above; the code stays where it is until `unload`.
                unsafe {
                    call!(
                        self.driver,
                        cuLibraryLoadData(&mut handle, image, keys, values, count, &mut key, &mut value, 1)
                    )
                }
            }
        };
        if let Err(code) = loaded {
            return Err(match &options {
                Some(options) => options.failure(code),
                None => LoadError { code, log: String::new() },
            });
        }
        let log = options.as_ref().map(JitOptions::info).unwrap_or_default();
        let used = AtomicBool::new(kind == ModuleKind::Module);
        let entry = Entry { kind, code, used, variables: OnceLock::new(), _options: options };
        self.loaded.lock().insert(handle, Arc::new(entry));
        Ok(Loaded { module: Module(handle), log })
    }

    pub fn unload(&self, module: Module) -> Result<()> {
        let entry = self.entry(module)?;
        // SAFETY: the handle came from this context and is loaded; the code outlives the call.
        unsafe {
            match entry.kind {
                ModuleKind::Module => call!(self.driver, cuModuleUnload(module.0)),
                ModuleKind::Library => call!(self.driver, cuLibraryUnload(module.0)),
            }
        }?;
        self.loaded.lock().remove(&module.0);
        Ok(())
    }

    pub fn function(&self, module: Module, name: &str) -> Result<Function> {
        let entry = self.entry(module)?;
        let name = CString::new(name).map_err(|_| CUDA_ERROR_NOT_FOUND)?;
        let mut function = 0;
        // SAFETY: loaded handle, NUL-terminated name.
        unsafe {
            match entry.kind {
                ModuleKind::Module => {
                    call!(self.driver, cuModuleGetFunction(&mut function, module.0, name.as_ptr()))?;
                }
                ModuleKind::Library => {
                    let mut kernel = 0;
                    call!(self.driver, cuLibraryGetKernel(&mut kernel, module.0, name.as_ptr()))?;
                    entry.used.store(true, Ordering::Relaxed);
                    call!(self.driver, cuKernelGetFunction(&mut function, kernel))?;
                }
            }
        }
        Ok(Function(function))
    }

    pub fn function_names(&self, module: Module) -> Result<Vec<String>> {
        let kind = self.entry(module)?.kind;
        let mut count = 0;
        // SAFETY: loaded handle; writes one integer.
        unsafe {
            match kind {
                ModuleKind::Module => call!(self.driver, cuModuleGetFunctionCount(&mut count, module.0)),
                ModuleKind::Library => call!(self.driver, cuLibraryGetKernelCount(&mut count, module.0)),
            }
        }?;
        let mut handles = vec![0; count as usize];
        if count > 0 {
            let room = handles.as_mut_ptr();
            // SAFETY: writes at most `count` handles.
            unsafe {
                match kind {
                    ModuleKind::Module => {
                        call!(self.driver, cuModuleEnumerateFunctions(room, count, module.0))
                    }
                    ModuleKind::Library => {
                        call!(self.driver, cuLibraryEnumerateKernels(room, count, module.0))
                    }
                }
            }?;
        }
        handles.into_iter().filter(|handle| *handle != 0).map(|handle| self.name(kind, handle)).collect()
    }

    fn name(&self, kind: ModuleKind, handle: u64) -> Result<String> {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: a handle of the right kind; writes one pointer.
        unsafe {
            match kind {
                ModuleKind::Module => call!(self.driver, cuFuncGetName(&mut name, handle)),
                ModuleKind::Library => call!(self.driver, cuKernelGetName(&mut name, handle)),
            }
        }?;
        if name.is_null() {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        // SAFETY: the driver's string lives as long as the module, and ends in NUL.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    /// Address and size of a variable.
    pub fn global(&self, module: Module, name: &str) -> Result<(u64, u64)> {
        let entry = self.entry(module)?;
        let found = self.lookup(module, entry.kind, name)?;
        entry.used.store(true, Ordering::Relaxed);
        Ok(found)
    }

    fn lookup(&self, module: Module, kind: ModuleKind, name: &str) -> Result<(u64, u64)> {
        let name = CString::new(name).map_err(|_| CUDA_ERROR_NOT_FOUND)?;
        let (mut address, mut bytes) = (0, 0);
        let functions = &self.driver.functions;
        // SAFETY: loaded handle, NUL-terminated name; each writes an address and a size. Not being found is ordinary,
        // so it is not logged.
        let code = unsafe {
            match kind {
                ModuleKind::Module => {
                    (functions.cuModuleGetGlobal_v2)(&mut address, &mut bytes, module.0, name.as_ptr())
                }
                ModuleKind::Library => {
                    (functions.cuLibraryGetGlobal)(&mut address, &mut bytes, module.0, name.as_ptr())
                }
            }
        };
        match code {
            CUDA_ERROR_NOT_FOUND => Err(code),
            _ => self.driver.check("cuModuleGetGlobal", code).map(|()| (address, bytes as u64)),
        }
    }

    /// Looks through the code of a module for its variables, without the driver.
    pub fn expect_globals(&self, module: Module) {
        if let Ok(entry) = self.entry(module)
            && entry.used.load(Ordering::Relaxed)
        {
            entry.variables(self.capability);
        }
    }

    pub fn globals(&self, module: Module) -> Result<Vec<Global>> {
        let entry = self.entry(module)?;
        if !entry.used.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let (names, whole) = entry.variables(self.capability);
        if !*whole {
            log::warn!(
                "module {:#x}: some of its {} bytes of code could not be searched for variables",
                module.0,
                entry.code.bytes().len()
            );
        }
        let mut globals = Vec::new();
        for (name, constant) in names {
            match self.lookup(module, entry.kind, name) {
                Ok((address, bytes)) => {
                    globals.push(Global { name: name.clone(), address, bytes, constant: *constant });
                }
                Err(CUDA_ERROR_NOT_FOUND | CUDA_ERROR_INVALID_VALUE) => {}
                Err(code) => return Err(code),
            }
        }
        Ok(globals)
    }

    pub fn function_info(&self, function: Function) -> Result<FunctionInfo> {
        let mut attributes = Vec::with_capacity(FUNCTION_ATTRIBUTES as usize);
        for attribute in 0..FUNCTION_ATTRIBUTES {
            let mut value = 0;
            // SAFETY: a function of this context; writes one integer.
            let result = unsafe { call!(self.driver, cuFuncGetAttribute(&mut value, attribute, function.0)) };
            match result {
                Ok(()) => attributes.push(value),
                Err(CUDA_ERROR_INVALID_VALUE) => attributes.push(0),
                Err(code) => return Err(code),
            }
        }
        let mut parameters = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: as above; an index past the last parameter is refused.
            let code = unsafe {
                (self.driver.functions.cuFuncGetParamInfo)(
                    function.0,
                    parameters.len(),
                    &mut offset,
                    &mut size,
                )
            };
            match code {
                CUDA_ERROR_INVALID_VALUE => break,
                _ => self.driver.check("cuFuncGetParamInfo", code)?,
            }
            parameters.push(Parameter { offset: offset as u32, size: size as u32 });
        }
        Ok(FunctionInfo { attributes, parameters })
    }

    pub fn link(
        &self,
        inputs: &[LinkInput<'_>],
        options: &[(i32, u64)],
    ) -> std::result::Result<(Vec<u8>, String), LoadError> {
        let mut options = JitOptions::new(options);
        let cubin = self.linked(inputs, &mut options).map_err(|code| options.failure(code))?;
        Ok((cubin, options.info()))
    }

    fn linked(&self, inputs: &[LinkInput<'_>], options: &mut JitOptions) -> Result<Vec<u8>> {
        let mut state = 0;
        // SAFETY: the options are as many as counted; they and their buffers outlive the linker.
        unsafe {
            call!(
                self.driver,
                cuLinkCreate_v2(
                    options.count(),
                    options.keys.as_mut_ptr(),
                    options.values.as_mut_ptr(),
                    &mut state
                )
            )
        }?;
        let linker = Linker { driver: &self.driver, state };
        for input in inputs {
            let name = CString::new(input.name).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
            // PTX must end in NUL, which counts; no other kind minds a byte behind its end.
            let bytes = terminated(input.bytes);
            let none = std::ptr::null_mut();
            // SAFETY: the linker copies `bytes` during the call; no options are given.
            unsafe {
                call!(
                    self.driver,
                    cuLinkAddData_v2(
                        linker.state,
                        input.kind,
                        bytes.as_ptr().cast(),
                        if input.kind == LinkInput::PTX { bytes.len() } else { input.bytes.len() },
                        name.as_ptr(),
                        0,
                        none,
                        none.cast(),
                    )
                )
            }?;
        }
        let (mut cubin, mut size) = (std::ptr::null(), 0);
        // SAFETY: writes where the linker keeps its result, and how long it is.
        unsafe { call!(self.driver, cuLinkComplete(linker.state, &mut cubin, &mut size)) }?;
        // SAFETY: the result lives until the linker is destroyed, at the end of this function.
        Ok(unsafe { std::slice::from_raw_parts(cubin, size) }.to_vec())
    }
}

/// Destroys a linker at the end of its use.
struct Linker<'a> {
    driver: &'a Driver,
    state: u64,
}

impl Drop for Linker<'_> {
    fn drop(&mut self) {
        let destroy: unsafe extern "C" fn(u64) -> _ = self.driver.functions.cuLinkDestroy;
        // SAFETY: created by `cuLinkCreate` and destroyed once.
        let _ = unsafe { destroy(self.state) };
    }
}

/// The code in a form that the driver, which is given no length, reads no further than it goes.
fn readable(code: Code) -> Option<Code> {
    let bytes = code.bytes();
    if bytes.starts_with(&FATBIN_WRAPPER.to_le_bytes()) {
        return None;
    }
    if fatbin::is_fatbin(bytes) {
        return fatbin::is_whole(bytes).then_some(code);
    }
    if bytes.starts_with(ELF) {
        return is_whole(bytes).then_some(code);
    }
    if bytes.contains(&0) { Some(code) } else { Some(Code::new(terminated(bytes))) }
}

/// A copy that ends in NUL.
fn terminated(bytes: &[u8]) -> Vec<u8> {
    let mut copy = Vec::with_capacity(bytes.len() + 1);
    copy.extend_from_slice(bytes);
    if copy.last() != Some(&0) {
        copy.push(0);
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_code_samples::{Content, Packing, container, synthetic};

    fn read(bytes: &[u8]) -> Option<Vec<u8>> {
        readable(Code::new(bytes.to_vec())).map(|code| code.bytes().to_vec())
    }

    #[test]
    fn ptx_gets_its_nul() {
        assert_eq!(read(b".version 7.0").unwrap(), b".version 7.0\0");
        assert_eq!(read(b".version 7.0\0").unwrap(), b".version 7.0\0");
        assert_eq!(read(b"").unwrap(), b"\0");
    }

    #[test]
    fn cut_code_never_reaches_the_driver() {
        let cubin = synthetic(&[".nv.global"], &[("a", 1, 1, 4)]);
        assert_eq!(read(&cubin).unwrap(), cubin);
        let fatbin = container(&[(Content::Cubin, 90, &cubin, Packing::Plain)]);
        assert_eq!(read(&fatbin).unwrap(), fatbin);
        for code in [&cubin, &fatbin] {
            for cut in 4..code.len() {
                assert!(read(&code[..cut]).is_none(), "{cut} of {}", code.len());
            }
        }
    }

    #[test]
    fn a_wrapper_of_pointers_is_refused() {
        let mut wrapper = FATBIN_WRAPPER.to_le_bytes().to_vec();
        wrapper.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        assert!(read(&wrapper).is_none());
    }
}
