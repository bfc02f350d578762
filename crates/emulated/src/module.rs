//! A loaded module: its PTX decoded, its globals and constants in device memory.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_device::{Code, Global, LoadError};
use rekindle_ptx as ptx;

use crate::arena::{Arena, Block, OPTION_GLOBALS_ADDRESS, OPTION_MODULE_ADDRESS};
use crate::function::Settings;
use crate::{fatbin, image};

/// `CU_JIT_MAX_REGISTERS`
const OPTION_MAX_REGISTERS: i32 = 0;
pub(crate) const LARGEST_ALIGNMENT: u64 = 4096;

/// The most registers of a thread that the options allow; zero where they do not say.
pub(crate) fn register_limit(options: &[(i32, u64)]) -> u32 {
    let asked = options.iter().find(|row| row.0 == OPTION_MAX_REGISTERS).map_or(0, |row| row.1);
    u32::try_from(asked).unwrap_or(0)
}

/// The most registers of a thread that options and code allow.
pub(crate) fn registers_of_thread(code: &[u8], options: &[(i32, u64)]) -> u32 {
    let limits = [register_limit(options), fatbin::register_limit(code)];
    limits.into_iter().filter(|limit| *limit > 0).min().unwrap_or(u32::MAX)
}

pub(crate) struct LoadedModule {
    pub module: ptx::Module,
    /// Device address of each of `module.globals()`.
    pub addresses: Vec<u64>,
    pub globals: Vec<Global>,
    /// What the program set of each entry.
    pub settings: Mutex<Vec<Settings>>,
    /// What the program or its linking allowed a thread; what a kernel needs beyond it counts as spilled.
    pub register_limit: u32,
    _block: Option<Block>,
    _code: Code,
}

/// Where each variable lies in the module's memory.
pub(crate) struct Layout {
    pub offsets: Vec<u64>,
    /// Those of all constants, which come last.
    pub constants: Range<u64>,
}

impl Layout {
    /// Of all of them.
    pub fn bytes(&self) -> u64 {
        self.constants.end
    }
}

pub(crate) fn is_constant(variable: &ptx::Global) -> bool {
    variable.space == ptx::Space::Const
}

pub(crate) fn layout(variables: &[ptx::Global]) -> Result<Layout, LoadError> {
    let mut offsets = vec![0; variables.len()];
    let (mut end, mut constants) = (0_u64, None);
    let mut order: Vec<usize> = (0..variables.len()).collect();
    order.sort_by_key(|index| is_constant(&variables[*index]));
    for index in order {
        let variable = &variables[index];
        // No two modules lie on one page, and no alignment of PTX is larger.
        let align = variable.align.clamp(1, LARGEST_ALIGNMENT).next_power_of_two().max(16);
        let first = is_constant(variable) && constants.is_none();
        // So that constants are aligned in a bank of theirs too.
        let offset = end.next_multiple_of(if first { LARGEST_ALIGNMENT } else { align });
        if is_constant(variable) {
            constants.get_or_insert(offset);
        }
        offsets[index] = offset;
        end = offset.checked_add(variable.size).filter(|end| *end < 1 << 40).ok_or_else(|| LoadError {
            code: CUDA_ERROR_OUT_OF_MEMORY,
            log: format!("`{}` takes {} bytes, which no device has", variable.name, variable.size),
        })?;
    }
    Ok(Layout { offsets, constants: constants.unwrap_or(end)..end })
}

/// Bytes of all constants, as a kernel's attributes tell.
pub(crate) fn constant_bytes(variables: &[ptx::Global]) -> u32 {
    let constants = variables.iter().filter(|variable| is_constant(variable));
    u32::try_from(constants.map(|variable| variable.size).sum::<u64>()).unwrap_or(u32::MAX)
}

/// The contents of the module's memory at `start`, up to where only zeros follow.
pub(crate) fn initial(variables: &[ptx::Global], offsets: &[u64], start: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (variable, offset) in variables.iter().zip(offsets) {
        if variable.init.iter().all(|byte| *byte == 0) && variable.relocations.is_empty() {
            continue;
        }
        let from = *offset as usize;
        bytes.resize(bytes.len().max(from + variable.init.len()), 0);
        bytes[from..from + variable.init.len()].copy_from_slice(&variable.init);
        for relocation in &variable.relocations {
            // Generic addresses and those of global memory are the same.
            let value = start.wrapping_add(offsets[relocation.global]).wrapping_add(relocation.addend as u64);
            let at = from + relocation.offset as usize;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

impl LoadedModule {
    pub fn load(code: Code, options: &[(i32, u64)], arena: &Arc<Arena>) -> Result<LoadedModule, LoadError> {
        let module = image::module(&image::texts(code.bytes())?)?;
        let register_limit = registers_of_thread(code.bytes(), options);
        let at = options.iter().find(|row| row.0 == OPTION_MODULE_ADDRESS).map(|row| row.1);
        let variables = module.globals();
        let layout = layout(variables)?;
        let settings = Mutex::new(module.entries().iter().map(Settings::new).collect());
        if variables.is_empty() {
            let (addresses, globals) = (Vec::new(), Vec::new());
            return Ok(LoadedModule {
                module,
                addresses,
                globals,
                settings,
                register_limit,
                _block: None,
                _code: code,
            });
        }
        let placed = options.iter().find(|row| row.0 == OPTION_GLOBALS_ADDRESS).map(|row| row.1);
        // Where the globals lie in a buffer, a bank of the constants is all that is the module's own.
        let own = if placed.is_some() { layout.constants.clone() } else { 0..layout.bytes() };
        let bytes = own.end - own.start;
        let take = || {
            arena.take(bytes, at).map_err(|code| LoadError {
                code,
                log: match at {
                    Some(at) => format!(
                        "the module's {bytes} bytes of globals do not fit at {at:#x}, where they were asked for"
                    ),
                    None => {
                        format!("the module's {bytes} bytes of globals do not fit into the device's memory")
                    }
                },
            })
        };
        let block = (bytes > 0).then(take).transpose()?;
        let bank = block.as_ref().map(|block| block.range.start.wrapping_sub(own.start));
        let start = placed.or(bank).unwrap_or_default();
        let place = |offset: u64| if own.contains(&offset) { bank.unwrap_or(start) } else { start };
        let addresses: Vec<u64> =
            layout.offsets.iter().map(|offset| place(*offset).wrapping_add(*offset)).collect();
        if let Some(block) = &block {
            let initial = initial(variables, &layout.offsets, start);
            block.write(0, initial.get(own.start as usize..).unwrap_or_default());
        }
        let globals: Vec<Global> = variables
            .iter()
            .zip(&addresses)
            .map(|(variable, address)| Global {
                name: variable.name.clone(),
                address: *address,
                bytes: variable.size,
                constant: is_constant(variable),
            })
            .collect();
        Ok(LoadedModule { module, addresses, globals, settings, register_limit, _block: block, _code: code })
    }
}
