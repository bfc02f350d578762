//! What the notes beside a kernel say of it: what the driver is asked for, answered without loading anything.

use std::collections::HashMap;

use crate::cubin::Cubin;
use crate::error::Result;
use crate::globals::CONSTANTS;
use crate::notes::{self, Note, notes};
use crate::prepare::is_reserved;

/// From this version of the ABI on a kernel's section of shared memory has room for what the system keeps.
const ABI_WITH_RESERVED: u8 = 8;

/// Where a parameter lies in a launch's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub offset: u32,
    pub bytes: u32,
}

/// A kernel of a cubin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Local memory of a thread, that of functions that it calls included; none where they call each other in a round.
    pub local: Option<u32>,
    /// Static shared memory of a block, as its section says.
    pub shared: u64,
    /// Whether that counts what the system keeps for itself in; none where it cannot be told.
    pub reserved_counted: Option<bool>,
    /// Bytes of the module's user constants.
    pub constants: u32,
    /// The most threads of a block, where the program has said so.
    pub threads: Option<u32>,
    /// Blocks of a cluster, where the program has said so.
    pub cluster: Option<[u32; 3]>,
    /// In the order of a launch; none where a note of theirs is cut short.
    pub parameters: Option<Vec<Parameter>>,
    /// Compute capability of the code, and of the PTX that it was made from: 90 is 9.0.
    pub capability: u32,
    pub ptx_capability: u32,
}

/// What a kernel may have of a GPU, as its attributes depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Registers of a multiprocessor (`CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR`).
    pub registers: u32,
    /// Threads of a block (`CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK`).
    pub threads: u32,
    /// Shared memory of a block, that is had without asking for more (`…_MAX_SHARED_MEMORY_PER_BLOCK`).
    pub shared: u32,
    /// What the system keeps of a block's shared memory (`…_RESERVED_SHARED_MEMORY_PER_BLOCK`).
    pub reserved_shared: u32,
}

/// Registers are given to warps in steps of this many, to four parts of a multiprocessor each on its own.
const REGISTER_STEP: u32 = 256;
const PARTS: u32 = 4;
const WARP: u32 = 32;
/// How many a GPU has of `CUfunction_attribute`.
pub const ATTRIBUTES: usize = 16;

impl Kernel {
    /// What `cuFuncGetAttribute` says of the kernel before anybody sets anything, by attribute; none where the notes
    /// do not tell.
    pub fn attributes(&self, limits: &Limits) -> [Option<i32>; ATTRIBUTES] {
        let shared = self.static_shared(limits);
        let left = shared.map(|shared| limits.shared.saturating_sub(shared));
        let number = |value: u32| i32::try_from(value).ok();
        let cluster = |axis: usize| number(self.cluster.map_or(0, |sizes| sizes[axis]));
        [
            number(self.threads.unwrap_or_else(|| self.most_threads(limits))),
            shared.and_then(number),
            number(self.constants),
            self.local.and_then(number),
            number(self.registers),
            number(self.ptx_capability),
            number(self.capability),
            Some(0),
            left.and_then(number),
            Some(-1),
            Some(i32::from(self.cluster.is_some())),
            cluster(0),
            cluster(1),
            cluster(2),
            Some(0),
            Some(0),
        ]
    }

    /// Without what the system keeps, which newer tools count into the section.
    fn static_shared(&self, limits: &Limits) -> Option<u32> {
        let shared = u32::try_from(self.shared).unwrap_or(u32::MAX);
        let reserved = if self.reserved_counted? { limits.reserved_shared } else { 0 };
        Some(shared.saturating_sub(reserved))
    }

    /// As many as there are registers for.
    fn most_threads(&self, limits: &Limits) -> u32 {
        let of_warp = self.registers.max(1).saturating_mul(WARP).min(1 << 20).next_multiple_of(REGISTER_STEP);
        let warps = limits.registers / PARTS / of_warp * PARTS;
        limits.threads.min(warps * WARP)
    }
}

/// Notes of a module by symbol.
struct BySymbol(HashMap<(u8, u32), u32>);

impl BySymbol {
    fn read(cubin: &Cubin<'_>) -> Result<BySymbol> {
        let mut all = HashMap::new();
        if let Some(section) = cubin.named(".nv.info") {
            for note in notes(cubin, section)? {
                if let (Some(symbol), Some(value)) = (note.symbol(), note.word(1)) {
                    all.insert((note.attribute, symbol), value);
                }
            }
        }
        Ok(BySymbol(all))
    }

    fn get(&self, attribute: u8, symbol: u32) -> Option<u32> {
        self.0.get(&(attribute, symbol)).copied()
    }
}

/// The kernels of a cubin, in the order of its symbols.
pub(crate) fn kernels(cubin: &Cubin<'_>) -> Result<Vec<Kernel>> {
    let of_module = BySymbol::read(cubin)?;
    let ptx_capability = ptx_capability(cubin).unwrap_or(cubin.capability);
    let constants = cubin.named(CONSTANTS).map_or(0, |section| cubin.sections[section].size);
    // Of those in between, some count it in.
    let names_reserved = cubin.symbols.iter().any(|symbol| is_reserved(symbol.name));
    let reserved_counted = match cubin.abi >= ABI_WITH_RESERVED {
        true => Some(true),
        false => (!names_reserved).then_some(false),
    };
    let mut all = Vec::new();
    for (index, symbol) in cubin.symbols.iter().enumerate().filter(|(_, symbol)| symbol.is_kernel()) {
        let index = index as u32;
        let mut kernel = Kernel {
            name: symbol.name.to_owned(),
            registers: of_module.get(notes::REGISTERS, index).unwrap_or_default(),
            local: of_module.get(notes::MIN_STACK_SIZE, index).filter(|bytes| *bytes != u32::MAX),
            capability: cubin.capability,
            ptx_capability,
            constants: u32::try_from(constants).unwrap_or(u32::MAX),
            reserved_counted,
            parameters: Some(Vec::new()),
            ..Kernel::default()
        };
        if let Some(section) = cubin.named(&format!(".nv.shared.{}", symbol.name)) {
            kernel.shared = cubin.sections[section].size;
        }
        if let Some(section) = cubin.named(&format!(".nv.info.{}", symbol.name)) {
            let mut parameters = Vec::new();
            for note in notes(cubin, section)? {
                add(&mut kernel, &mut parameters, &note);
            }
            parameters.sort_by_key(|(ordinal, _)| *ordinal);
            let parameters = parameters.into_iter().map(|(_, parameter)| parameter).collect();
            kernel.parameters = kernel.parameters.map(|_| parameters);
        }
        all.push(kernel);
    }
    Ok(all)
}

fn add(kernel: &mut Kernel, parameters: &mut Vec<(u16, Parameter)>, note: &Note<'_>) {
    let triple = || Some([note.word(0)?, note.word(1)?, note.word(2)?]);
    match note.attribute {
        notes::MAX_THREADS | notes::REQUIRED_THREADS => {
            let threads =
                triple().map(|sizes| sizes.iter().fold(1u32, |all, size| all.saturating_mul(*size)));
            kernel.threads = threads.or(kernel.threads);
        }
        notes::CLUSTER => kernel.cluster = triple(),
        notes::PARAMETER => match (note.word(1), note.word(2)) {
            // Ordinal and offset, half a word each; the size lies in the upper bits of the next word.
            (Some(place), Some(size)) => {
                let parameter = Parameter { offset: place >> 16, bytes: size >> 18 };
                parameters.push((place as u16, parameter));
            }
            _ => kernel.parameters = None,
        },
        notes::PARAMETER_LARGE => match (note.word(1), note.word(2)) {
            (Some(place), Some(bytes)) => {
                parameters.push((place as u16, Parameter { offset: place >> 16, bytes }));
            }
            _ => kernel.parameters = None,
        },
        _ => {}
    }
}

/// From the note `.note.nv.cuinfo`: owner `NVIDIA Corp`, then version, PTX capability, version of the tools.
fn ptx_capability(cubin: &Cubin<'_>) -> Option<u32> {
    let note = cubin.sections[cubin.named(".note.nv.cuinfo")?].data;
    let value = note.get(24..28)?;
    Some(u32::from(u16::from_le_bytes([value[2], value[3]])))
}
