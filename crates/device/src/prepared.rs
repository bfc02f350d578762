//! Code that a device loads a kernel at a time, with its globals wherever a buffer lies.

use std::ops::Range;

use rekindle_cuda::CuResult;

use crate::{Code, Device, Function, FunctionInfo, LoadError, Loaded, Module, ModuleKind, Result};

/// Code that was taken apart once ([`crate::Device::prepare`]).
pub trait PreparedCode: Send + Sync {
    /// Bytes of a buffer that holds all globals; 0 where there are none.
    fn globals_bytes(&self) -> u64;
    /// What the buffer's address must be a multiple of.
    fn globals_alignment(&self) -> u64;
    /// Where a global lies in the buffer, and its bytes.
    fn global(&self, name: &str) -> Option<(u64, u64)>;
    /// The buffer's first bytes if it lies at `address`; what follows is zeros.
    fn initial(&self, address: u64) -> Vec<u8>;
    /// User constants, of which each piece has a bank for itself.
    fn constants(&self) -> Option<Constants> {
        None
    }
    fn kernels(&self) -> Vec<String>;
    /// What is known of a kernel before anybody loads it or sets anything; none where loading it must tell.
    fn info(&self, _kernel: &str) -> Option<FunctionInfo> {
        None
    }
    /// What [`crate::Device::module_load`] takes to have this kernel, the globals lying at `globals`.
    fn piece(&self, kernel: &str, globals: u64) -> Result<Piece>;
}

/// User constants of prepared code.
pub struct Constants {
    /// Where the buffer of globals has what the program reads and writes of them.
    pub range: Range<u64>,
    /// One of them, by which a piece's bank is found.
    pub name: String,
}

/// One kernel of prepared code.
#[derive(Clone)]
pub struct Piece {
    pub code: Code,
    pub options: Vec<(i32, u64)>,
    /// Nothing in it is written to once it is loaded: programs of one context may use it together.
    pub is_sharable: bool,
}

/// What a program has set for a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KernelSettings {
    /// `CUfunction_attribute` and value, in the order in which they were set.
    pub attributes: Vec<(i32, i32)>,
    /// `CUfunc_cache`.
    pub cache: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelSetting {
    Attribute(i32, i32),
    Cache(i32),
}

impl KernelSettings {
    pub fn set(&mut self, setting: KernelSetting) {
        match setting {
            KernelSetting::Attribute(attribute, value) => {
                self.attributes.retain(|row| row.0 != attribute);
                self.attributes.push((attribute, value));
            }
            KernelSetting::Cache(config) => self.cache = Some(config),
        }
    }

    pub fn all(&self) -> impl Iterator<Item = KernelSetting> + '_ {
        let attributes = self.attributes.iter().map(|row| KernelSetting::Attribute(row.0, row.1));
        attributes.chain(self.cache.map(KernelSetting::Cache))
    }

    pub fn has(&self, setting: KernelSetting) -> bool {
        self.all().any(|one| one == setting)
    }
}

impl KernelSetting {
    pub fn apply<D: Device + ?Sized>(self, device: &D, function: Function) -> Result<()> {
        match self {
            KernelSetting::Attribute(attribute, value) => {
                device.set_function_attribute(function, attribute, value)
            }
            KernelSetting::Cache(config) => device.set_function_cache(function, config),
        }
    }
}

/// Has a device load a piece, and gives its kernel. The driver may put off all of it until a kernel is asked for.
pub fn load_piece<D: Device + ?Sized>(
    device: &D,
    kernel: &str,
    piece: &Piece,
    settings: &KernelSettings,
) -> std::result::Result<(Module, Function), LoadError> {
    let Loaded { module, .. } =
        device.module_load(piece.code.clone(), ModuleKind::Library, &piece.options)?;
    let found = device.function(module, kernel).and_then(|function| {
        settings.all().try_for_each(|setting| setting.apply(device, function))?;
        Ok((module, function))
    });
    found.map_err(|code: CuResult| {
        let kept = device.module_unload(module).err();
        let log = kept.map(|code| format!("and its piece stays loaded: {code}")).unwrap_or_default();
        LoadError { code, log }
    })
}
