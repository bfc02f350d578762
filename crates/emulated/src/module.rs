//! A loaded module: its PTX decoded, its globals and constants in device memory.

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

pub(crate) struct LoadedModule {
    pub module: ptx::Module,
    /// Device address of each of `module.globals()`.
    pub addresses: Vec<u64>,
    pub globals: Vec<Global>,
    /// What the program set of each entry.
    pub settings: Mutex<Vec<Settings>>,
    /// What the program or its linking allowed a thread; what a kernel needs beyond it counts as spilled.
    pub register_limit: u32,
    /// Of all constants together.
    pub constant_bytes: u32,
    _block: Option<Block>,
    _code: Code,
}

/// Where each variable lies in the module's memory, and the bytes of all.
pub(crate) fn layout(variables: &[ptx::Global]) -> Result<(Vec<u64>, u64), LoadError> {
    let mut offsets = Vec::with_capacity(variables.len());
    let mut end = 0_u64;
    for variable in variables {
        // No two modules lie on one page, and no alignment of PTX is larger.
        let align = variable.align.clamp(1, LARGEST_ALIGNMENT).next_power_of_two().max(16);
        let offset = end.next_multiple_of(align);
        offsets.push(offset);
        end = offset.checked_add(variable.size).filter(|end| *end < 1 << 40).ok_or_else(|| LoadError {
            code: CUDA_ERROR_OUT_OF_MEMORY,
            log: format!("`{}` takes {} bytes, which no device has", variable.name, variable.size),
        })?;
    }
    Ok((offsets, end))
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
        let limits = [register_limit(options), fatbin::register_limit(code.bytes())];
        let register_limit = limits.into_iter().filter(|limit| *limit > 0).min().unwrap_or(u32::MAX);
        let at = options.iter().find(|row| row.0 == OPTION_MODULE_ADDRESS).map(|row| row.1);
        let variables = module.globals();
        let (offsets, end) = layout(variables)?;
        let settings = Mutex::new(module.entries().iter().map(Settings::new).collect());
        if variables.is_empty() {
            let (addresses, globals) = (Vec::new(), Vec::new());
            return Ok(LoadedModule {
                module,
                addresses,
                globals,
                settings,
                register_limit,
                constant_bytes: 0,
                _block: None,
                _code: code,
            });
        }
        let placed = options.iter().find(|row| row.0 == OPTION_GLOBALS_ADDRESS).map(|row| row.1);
        let block = match placed {
            Some(_) => None,
            None => Some(arena.take(end, at).map_err(|code| LoadError {
                code,
                log: match at {
                    Some(at) => format!(
                        "the module's {end} bytes of globals do not fit at {at:#x}, where they were asked for"
                    ),
                    None => {
                        format!("the module's {end} bytes of globals do not fit into the device's memory")
                    }
                },
            })?),
        };
        let start = block.as_ref().map_or(placed.unwrap_or_default(), |block| block.range.start);
        let addresses: Vec<u64> = offsets.iter().map(|offset| start.wrapping_add(*offset)).collect();
        if let Some(block) = &block {
            block.write(0, &initial(variables, &offsets, start));
        }
        let globals: Vec<Global> = variables
            .iter()
            .zip(&addresses)
            .map(|(variable, address)| Global {
                name: variable.name.clone(),
                address: *address,
                bytes: variable.size,
                constant: variable.space == ptx::Space::Const,
            })
            .collect();
        let constant: u64 = globals.iter().filter(|global| global.constant).map(|global| global.bytes).sum();
        Ok(LoadedModule {
            module,
            addresses,
            globals,
            settings,
            register_limit,
            constant_bytes: u32::try_from(constant).unwrap_or(u32::MAX),
            _block: block,
            _code: code,
        })
    }
}
