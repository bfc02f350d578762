//! The loaded module and what a device must know of it.

use std::sync::Arc;

use crate::ast::Ast;
use crate::program::Program;
use crate::types::Space;
use crate::{Error, lower, parser};

/// PTX that has been parsed, checked and decoded. Cloning shares it.
#[derive(Clone)]
pub struct Module {
    /// One for each text that was linked in.
    asts: Vec<Arc<Ast>>,
    pub(crate) program: Arc<Program>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("entries", &self.program.entries).finish_non_exhaustive()
    }
}

/// One parameter of a kernel, where the launch finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    pub offset: u32,
    pub size: u32,
    pub align: u32,
}

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub parameters: Vec<Parameter>,
    /// Estimate of the 32-bit registers of a thread, at most 255 and what `.maxnreg` allows.
    pub registers: u32,
    pub static_shared: u32,
    /// Where dynamic shared memory begins: aligned, after the static variables.
    pub dynamic_shared_at: u32,
    /// Bytes of local memory of a thread, without those of called functions.
    pub local: u32,
    /// Bytes of constant memory of the module.
    pub constant: u32,
    pub max_threads: u32,
    pub required_threads: Option<[u32; 3]>,
    pub cluster: Option<[u32; 3]>,
}

/// A variable that needs a device address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    pub name: String,
    /// `Space::Global` or `Space::Const`.
    pub space: Space,
    pub size: u64,
    pub align: u64,
    /// As long as `size`, before relocation.
    pub init: Vec<u8>,
    pub relocations: Vec<Relocation>,
    pub visible: bool,
}

/// Eight bytes of an initial value that hold an address: that of a global, plus `addend`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocation {
    pub offset: u64,
    pub symbol: String,
    /// Index of the symbol in `Module::globals`; names of private variables need not be unique.
    pub global: usize,
    pub addend: i64,
    /// Written as `generic(symbol)`; addresses are generic here either way.
    pub generic: bool,
}

impl Module {
    pub fn parse(source: &str) -> Result<Module, Error> {
        Self::assemble(vec![Arc::new(parser::parse(source)?)])
    }

    /// Joins modules into one whose external symbols are resolved where one of them defines them.
    pub fn link(modules: &[Module]) -> Result<Module, Error> {
        Self::assemble(modules.iter().flat_map(|module| module.asts.iter().cloned()).collect())
    }

    fn assemble(asts: Vec<Arc<Ast>>) -> Result<Module, Error> {
        let program = Arc::new(lower::lower(&asts)?);
        Ok(Module { asts, program })
    }

    /// Kernels, in the order of the text.
    pub fn entries(&self) -> &[Entry] {
        &self.program.entries
    }

    /// Variables of global and constant space, visible or not.
    pub fn globals(&self) -> &[Global] {
        &self.program.globals
    }

    /// External symbols without definition, sorted; a module that can be launched has none.
    pub fn unresolved(&self) -> Vec<String> {
        self.program.unresolved.clone()
    }

    pub fn version(&self) -> (u32, u32) {
        self.program.version
    }

    /// For example `sm_90`.
    pub fn target(&self) -> &str {
        &self.program.target
    }
}
