//! A module's variables and user constants as one buffer, wherever that lies.
//!
//! ```text
//!  buffer   initialised variables (.nv.global.init) │ user constants (.nv.constant3) │ zeros (.nv.global)
//! ```
//! Kernels read constants from a bank that each piece has for itself. The buffer has what the program asks for, writes
//! and reads by their names; whoever launches a kernel brings the bank up to it ([`Globals::constants`]).

use std::collections::HashMap;
use std::ops::Range;

use crate::cubin::{Cubin, KIND_OBJECT};
use crate::error::{Error, Result};
use crate::prepare::Whole;

const SECTION: &str = ".nv.global";
/// The bank of user constants.
pub(crate) const CONSTANTS: &str = ".nv.constant3";
/// What device memory that is copied to a bank begins at a multiple of.
const CONSTANTS_ALIGNMENT: u64 = 256;
/// No GPU has room for more.
const MOST: u64 = 1 << 40;
/// Relocations that write an address of eight bytes into data.
const ADDRESS_KINDS: [u32; 2] = [2, 4];

/// A variable or user constant of the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    pub name: String,
    /// Where it lies in the buffer.
    pub offset: u64,
    pub bytes: u64,
}

/// What a buffer of the module's variables and user constants must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Globals {
    pub bytes: u64,
    pub alignment: u64,
    /// In the order of their names.
    pub all: Vec<Global>,
    /// Where the user constants lie in the buffer.
    pub constants: Range<u64>,
    /// How the buffer begins; what follows is zeros.
    initial: Vec<u8>,
    /// Where the buffer holds the address of one of its own bytes: (at, of).
    pointers: Vec<(u64, u64)>,
}

impl Globals {
    /// The buffer's first bytes if it lies at `address`; what follows is zeros.
    pub fn initial(&self, address: u64) -> Vec<u8> {
        let mut initial = self.initial.clone();
        for (at, of) in &self.pointers {
            let at = *at as usize;
            initial[at..at + 8].copy_from_slice(&address.wrapping_add(*of).to_le_bytes());
        }
        initial
    }
}

/// Where sections of variables begin in the buffer.
pub(crate) struct SectionOffsets(HashMap<usize, u64>);

impl SectionOffsets {
    /// The byte of the buffer that a relocation means; none where its symbol is no variable.
    pub fn of(&self, cubin: &Cubin<'_>, symbol: usize, addend: i64) -> Option<u64> {
        let symbol = &cubin.symbols[symbol];
        let start = self.0.get(&symbol.section?)?;
        Some(start.wrapping_add(symbol.value).wrapping_add_signed(addend))
    }
}

pub(crate) fn globals(cubin: &Cubin<'_>) -> Result<std::result::Result<(Globals, SectionOffsets), Whole>> {
    let mut found = Globals { alignment: 1, ..Globals::default() };
    let (mut places, mut constants) = (HashMap::new(), None);
    let (with_bits, without): (Vec<_>, Vec<_>) = (0..cubin.sections.len())
        .filter(|index| is_globals(cubin.sections[*index].name) && !cubin.sections[*index].is_relocations())
        .partition(|index| cubin.sections[*index].has_bits());
    let bank = cubin.named(CONSTANTS).filter(|index| cubin.sections[*index].has_bits());
    for index in with_bits.into_iter().chain(bank).chain(without) {
        let section = &cubin.sections[index];
        let is_bank = bank == Some(index);
        let alignment = section.alignment.max(if is_bank { CONSTANTS_ALIGNMENT } else { 1 });
        let start = found.bytes.next_multiple_of(alignment);
        let end = start.checked_add(section.size).filter(|end| *end <= MOST);
        found.bytes = end.ok_or(Error::GlobalsSize { most: MOST })?;
        found.alignment = found.alignment.max(alignment);
        match is_bank {
            true => {
                found.constants = start..found.bytes;
                constants = Some((index, start));
            }
            false => {
                places.insert(index, start);
            }
        }
        if section.has_bits() {
            found.initial.resize(start as usize, 0);
            found.initial.extend_from_slice(section.data);
        }
    }
    for symbol in cubin.symbols.iter().filter(|symbol| symbol.kind() == KIND_OBJECT) {
        let place = |index| {
            let of_bank = constants.filter(|(bank, _)| *bank == index);
            of_bank.or_else(|| Some((index, *places.get(&index)?)))
        };
        let Some((index, start)) = symbol.section.and_then(place) else { continue };
        let section = &cubin.sections[index];
        let end = symbol.value.checked_add(symbol.size);
        if end.is_none_or(|end| end > section.size) {
            return Err(Error::SymbolEnd {
                name: symbol.name.to_owned(),
                section: section.name.to_owned(),
                end: end.unwrap_or(u64::MAX),
                bytes: section.size,
            });
        }
        if symbol.is_managed() {
            return Ok(Err(Whole::Managed(symbol.name.to_owned())));
        }
        let name = symbol.name.to_owned();
        found.all.push(Global { name, offset: start + symbol.value, bytes: symbol.size });
    }
    found.all.sort_by(|a, b| (&a.name, a.offset).cmp(&(&b.name, b.offset)));
    let places = SectionOffsets(places);
    if let Err(whole) = pointers(cubin, &places, &mut found)? {
        return Ok(Err(whole));
    }
    Ok(Ok((found, places)))
}

/// Variables that hold addresses of variables.
fn pointers(
    cubin: &Cubin<'_>,
    places: &SectionOffsets,
    found: &mut Globals,
) -> Result<std::result::Result<(), Whole>> {
    for index in (0..cubin.sections.len()).filter(|index| cubin.sections[*index].is_relocations()) {
        let target = cubin.sections[index].info as usize;
        let Some(start) = places.0.get(&target) else { continue };
        for relocation in cubin.relocations(index) {
            let symbol = &cubin.symbols[relocation.symbol];
            let section = &cubin.sections[target];
            let of = places.of(cubin, relocation.symbol, relocation.addend);
            let (Some(of), true, true) = (of, ADDRESS_KINDS.contains(&relocation.kind), section.has_bits())
            else {
                return Ok(Err(Whole::relocation(cubin, section, symbol, relocation.kind)));
            };
            if relocation.offset + 8 > section.size {
                return Err(Error::RelocationOffset {
                    section: cubin.sections[index].name.to_owned(),
                    target: section.name.to_owned(),
                    offset: relocation.offset,
                    bytes: section.size,
                });
            }
            found.pointers.push((start + relocation.offset, of));
        }
    }
    Ok(Ok(()))
}

pub(crate) fn is_globals(name: &str) -> bool {
    name.strip_prefix(SECTION).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
