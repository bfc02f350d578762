//! Code that a device can load, and what loading gives.

use std::sync::Arc;

use rekindle_cuda::CuResult;

use crate::Module;

/// The bytes of a PTX text, cubin or fatbin, shared and never copied: a heap buffer or a mapping of a library's file.
#[derive(Clone)]
pub struct Code(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl Code {
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Code {
        Code(Arc::new(bytes))
    }

    pub fn bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// Which half of the driver API loads it: `cuModuleLoadData*` or `cuLibraryLoadData` (lazy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ModuleKind {
    Module,
    Library,
}

/// A module that loaded, and what the compiler had to say (`CU_JIT_INFO_LOG_BUFFER`).
#[derive(Debug)]
pub struct Loaded {
    pub module: Module,
    pub log: String,
}

/// Why code did not load or link: the code, and the compiler's words (`CU_JIT_ERROR_LOG_BUFFER`).
#[derive(Debug, thiserror::Error)]
#[error("{code}: {log}")]
pub struct LoadError {
    pub code: CuResult,
    pub log: String,
}

/// A variable of a module.
#[derive(Clone, Debug)]
pub struct Global {
    pub name: String,
    pub address: u64,
    pub bytes: u64,
    /// In constant memory: never written by kernels, but perhaps by the host.
    pub constant: bool,
}

/// One input of `cuLinkAddData`; `kind` as `CUjitInputType`.
pub struct LinkInput<'a> {
    pub kind: u32,
    pub name: &'a str,
    pub bytes: &'a [u8],
}

impl LinkInput<'_> {
    pub const CUBIN: u32 = 0;
    pub const PTX: u32 = 1;
    pub const FATBIN: u32 = 2;
    /// Of the host, with fatbins in it.
    pub const OBJECT: u32 = 3;
    /// Of objects of the host.
    pub const LIBRARY: u32 = 4;
}
