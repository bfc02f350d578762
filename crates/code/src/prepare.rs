//! Whether code can be taken apart, and what is kept of it if so.

use std::collections::BTreeMap;

use crate::cubin::{Cubin, KINDS_TEXTURE, Section, Symbol};
use crate::error::{Error, Result};
use crate::fatbin;
use crate::globals::{Globals, SectionOffsets, globals, is_globals};
use crate::kernel::{Kernel, kernels};
use crate::notes::{self, notes};
use crate::piece;

/// The table through which code reaches globals and the driver's functions.
pub(crate) const ADDRESSES: &str = ".nv.constant4";
/// The driver's own functions, which it finds for any module.
const DRIVER_FUNCTIONS: [&str; 4] = ["vprintf", "__assertfail", "malloc", "free"];
/// Names for shared memory that the system keeps for itself.
const RESERVED: [&str; 2] = [".nv.reservedSmem", "__nv_reservedSMEM"];
/// From here on code has a second form beside it (`.nv.merc`), which was not taken apart yet.
const NEWEST: u32 = 99;

/// Why code is loaded whole, by the driver, in the program's order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Whole {
    #[error("it is PTX, which the driver compiles")]
    Ptx,
    #[error("it is for linking, and no program yet")]
    Relocatable,
    #[error("the fatbin has {0} cubins that the driver may choose from")]
    SeveralCubins(usize),
    #[error("its code is for compute capability {0}, whose second form is not taken apart")]
    Architecture(u32),
    #[error("its variable {0} is managed memory")]
    Managed(String),
    #[error("it has the texture, surface or sampler {0}")]
    Texture(String),
    #[error("{section} holds the address of the function {function}")]
    FunctionInData { section: String, function: String },
    #[error("it calls {0}, which is neither its own nor known to be the driver's")]
    ForeignFunction(String),
    #[error("its kernel {0} launches kernels")]
    DeviceLaunch(String),
    #[error("it has a table of functions for several modules ({0})")]
    Unified(String),
    #[error("{section} has a relocation of type {kind:#x} against {target}")]
    Relocation { section: String, kind: u32, target: String },
}

impl Whole {
    /// A word for the reason alone, to count by.
    pub fn word(&self) -> &'static str {
        match self {
            Whole::Ptx => "ptx",
            Whole::Relocatable => "relocatable",
            Whole::SeveralCubins(_) => "several-cubins",
            Whole::Architecture(_) => "architecture",
            Whole::Managed(_) => "managed",
            Whole::Texture(_) => "texture",
            Whole::FunctionInData { .. } => "function-in-data",
            Whole::ForeignFunction(_) => "foreign-function",
            Whole::DeviceLaunch(_) => "device-launch",
            Whole::Unified(_) => "unified",
            Whole::Relocation { .. } => "relocation",
        }
    }

    pub(crate) fn relocation(
        cubin: &Cubin<'_>,
        section: &Section<'_>,
        symbol: &Symbol<'_>,
        kind: u32,
    ) -> Whole {
        let within = cubin.section_of(symbol);
        let section = section.name.to_owned();
        if within.starts_with(".text.") {
            return Whole::FunctionInData { section, function: symbol.name.to_owned() };
        }
        let target = if symbol.name.is_empty() { within } else { symbol.name }.to_owned();
        Whole::Relocation { section, kind, target }
    }
}

/// What became of code.
#[derive(Debug)]
pub enum Preparation {
    Prepared(Prepared),
    Whole(Whole),
}

/// A module that can be loaded a kernel at a time, with its globals wherever a buffer lies.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) cubin: Vec<u8>,
    pub kernels: BTreeMap<String, Kernel>,
    pub globals: Globals,
    pub(crate) addresses: Vec<Address>,
}

/// A place that holds the address of a global.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// Section of the relocations, and where in it the entry begins.
    pub relocations: usize,
    pub at: usize,
    /// Where in the section that it is for.
    pub offset: u64,
    pub part: AddressPart,
    /// The byte of the globals' buffer that it is of.
    pub of: u64,
}

/// How much of an address a place holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressPart {
    /// All eight bytes.
    Whole,
    /// Half of it, in an instruction.
    Low,
    High,
}

impl AddressPart {
    fn of(kind: u32) -> Option<AddressPart> {
        match kind {
            2 => Some(AddressPart::Whole),
            0x38 => Some(AddressPart::Low),
            0x39 => Some(AddressPart::High),
            _ => None,
        }
    }

    /// Bytes that the place must have from its offset on: an instruction's sixteen.
    fn bytes(self) -> u64 {
        if self == AddressPart::Whole { 8 } else { 16 }
    }
}

impl Prepared {
    /// A cubin with this kernel and what it can reach, and nothing else, the module's globals lying at `globals`.
    pub fn piece(&self, kernel: &str, globals: u64) -> Result<Vec<u8>> {
        if !self.kernels.contains_key(kernel) {
            return Err(Error::NoKernel(kernel.to_owned()));
        }
        piece::cut(&Cubin::parse(&self.cubin)?, self, kernel, globals)
    }

    /// The cubin as it was given, unpacked.
    pub fn cubin(&self) -> &[u8] {
        &self.cubin
    }
}

/// Takes apart a cubin, or a fatbin's for a GPU of `capability` (90 is 9.0).
pub fn prepare(code: &[u8], capability: u32) -> Result<Preparation> {
    let cubin = match fatbin::is_fatbin(code) {
        true => match fatbin::choose(code, capability)? {
            Ok(entry) => entry.unpack()?.into_owned(),
            Err(whole) => return Ok(Preparation::Whole(whole)),
        },
        false if code.starts_with(b"\x7fELF") => code.to_vec(),
        false => return Ok(Preparation::Whole(Whole::Ptx)),
    };
    let parsed = Cubin::parse(&cubin)?;
    if let Err(whole) = examine(&parsed)? {
        return Ok(Preparation::Whole(whole));
    }
    let (globals, places) = match globals(&parsed)? {
        Ok(found) => found,
        Err(whole) => return Ok(Preparation::Whole(whole)),
    };
    let addresses = match addresses(&parsed, &places)? {
        Ok(found) => found,
        Err(whole) => return Ok(Preparation::Whole(whole)),
    };
    let kernels = kernels(&parsed)?.into_iter().map(|kernel| (kernel.name.clone(), kernel)).collect();
    Ok(Preparation::Prepared(Prepared { cubin, kernels, globals, addresses }))
}

/// All but what globals and the table of addresses tell.
fn examine(cubin: &Cubin<'_>) -> Result<std::result::Result<(), Whole>> {
    if !cubin.is_executable {
        return Ok(Err(Whole::Relocatable));
    }
    if cubin.capability > NEWEST {
        return Ok(Err(Whole::Architecture(cubin.capability)));
    }
    for section in cubin.sections.iter().filter(|section| section.size > 0) {
        match section.name {
            ".nv.uft" | ".nv.udt" | ".nv.uft.entry" | ".nv.udt.entry" => {
                return Ok(Err(Whole::Unified(section.name.to_owned())));
            }
            _ => {}
        }
    }
    if let Some(symbol) = cubin.symbols.iter().find(|symbol| KINDS_TEXTURE.contains(&symbol.kind())) {
        return Ok(Err(Whole::Texture(symbol.name.to_owned())));
    }
    for index in 0..cubin.sections.len() {
        let section = &cubin.sections[index];
        if let Some(kernel) = section.name.strip_prefix(".nv.info.") {
            let launches =
                |attribute| matches!(attribute, notes::DEVICE_LAUNCH_WRAPPER | notes::DEVICE_LAUNCH_PATCH);
            if notes(cubin, index)?.iter().any(|note| launches(note.attribute)) {
                return Ok(Err(Whole::DeviceLaunch(kernel.to_owned())));
            }
        }
    }
    Ok(Ok(()))
}

/// Whether a symbol stands for shared memory that the system keeps for itself.
pub(crate) fn is_reserved(name: &str) -> bool {
    RESERVED.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether the driver finds an undefined symbol for any module.
fn known(symbol: &Symbol<'_>) -> std::result::Result<(), Whole> {
    match is_reserved(symbol.name) || DRIVER_FUNCTIONS.contains(&symbol.name) {
        true => Ok(()),
        false => Err(Whole::ForeignFunction(symbol.name.to_owned())),
    }
}

/// Every place outside of globals that holds the address of one. What the driver fills in stays as it is: addresses of
/// its own functions, and what a piece keeps of a function's own.
fn addresses(cubin: &Cubin<'_>, places: &SectionOffsets) -> Result<std::result::Result<Vec<Address>, Whole>> {
    let mut all = Vec::new();
    for index in (0..cubin.sections.len()).filter(|index| cubin.sections[*index].is_relocations()) {
        let target = cubin.target(index);
        if is_globals(target.name) || piece::is_left_out(target.name) {
            continue;
        }
        // A relocation of type 0 does nothing.
        for relocation in cubin.relocations(index).filter(|relocation| relocation.kind != 0) {
            let symbol = &cubin.symbols[relocation.symbol];
            let whole = || Whole::relocation(cubin, target, symbol, relocation.kind);
            let end = |bytes| relocation.offset + bytes <= target.data.len() as u64;
            let outside = || Error::RelocationOffset {
                section: cubin.sections[index].name.to_owned(),
                target: target.name.to_owned(),
                offset: relocation.offset,
                bytes: target.size,
            };
            match places.of(cubin, relocation.symbol, relocation.addend) {
                Some(of) => {
                    let Some(part) = AddressPart::of(relocation.kind) else { return Ok(Err(whole())) };
                    // Halves stand in code, whole addresses in the table.
                    if (part == AddressPart::Whole) != (target.name == ADDRESSES) {
                        return Ok(Err(whole()));
                    }
                    if !end(part.bytes()) {
                        return Err(outside());
                    }
                    let (at, offset) = (relocation.at, relocation.offset);
                    all.push(Address { relocations: index, at, offset, part, of });
                }
                None if symbol.is_undefined() => {
                    if target.name == ADDRESSES && !end(AddressPart::Whole.bytes()) {
                        return Err(outside());
                    }
                    // In code, a symbol without a name is none.
                    if (target.name == ADDRESSES || !symbol.name.is_empty())
                        && let Err(whole) = known(symbol)
                    {
                        return Ok(Err(whole));
                    }
                }
                None if target.name != ADDRESSES && piece::owner(cubin.section_of(symbol)).is_some() => {}
                None => return Ok(Err(whole())),
            }
        }
    }
    Ok(Ok(all))
}
