//! A cubin as sections, symbols and relocations that are known to lie inside it.

use std::collections::HashMap;

use object::LittleEndian as LE;
use object::elf::{EM_CUDA, ET_EXEC, FileHeader64, SHT_NOBITS, SHT_NULL, SHT_REL, SHT_RELA, SHT_SYMTAB};
use object::read::elf::{FileHeader, SectionHeader, Sym};

use crate::error::{Error, Result};

const MACHINE_CUDA: u16 = EM_CUDA.0;
/// A cubin's own types of sections without contents: global, local, shared, reserved shared memory.
const NO_BITS_GPU: [u32; 4] = [0x7000_0007, 0x7000_0009, 0x7000_000a, 0x7000_0015];
const NULL: u32 = SHT_NULL.0;
const NO_BITS: u32 = SHT_NOBITS.0;
const REL: u32 = SHT_REL.0;
const RELA: u32 = SHT_RELA.0;
const MOST_ALIGNMENT: u64 = 64 << 10;
/// In a symbol's `other`: a kernel; managed memory.
const OTHER_KERNEL: u8 = 0x10;
const OTHER_MANAGED: u8 = 0x04;

pub const KIND_OBJECT: u8 = 1;
pub const KIND_FUNCTION: u8 = 2;
/// Textures, surfaces and samplers.
pub const KINDS_TEXTURE: std::ops::RangeInclusive<u8> = 10..=12;

#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    pub name: &'a str,
    /// Where the name begins in the table of names.
    pub name_at: u32,
    pub kind: u32,
    pub flags: u64,
    pub address: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub alignment: u64,
    pub entry: u64,
    /// Empty where the section takes no room in the file.
    pub data: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
pub struct Symbol<'a> {
    pub name: &'a str,
    pub info: u8,
    pub other: u8,
    /// What the row says; reserved numbers among them.
    pub row_section: u16,
    /// The section; none for an undefined or absolute symbol.
    pub section: Option<usize>,
    pub value: u64,
    pub size: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Relocation {
    /// Where the entry begins in its section.
    pub at: usize,
    pub offset: u64,
    pub kind: u32,
    pub symbol: usize,
    pub addend: i64,
}

pub struct Cubin<'a> {
    pub bytes: &'a [u8],
    pub is_executable: bool,
    pub sections: Vec<Section<'a>>,
    pub symbols: Vec<Symbol<'a>>,
    /// Section numbers of the symbol table, its strings and the sections' names.
    pub symbol_table: usize,
    pub strings: usize,
    pub names: usize,
    /// Compute capability: 90 is 9.0.
    pub capability: u32,
    pub abi: u8,
    by_name: HashMap<&'a str, usize>,
}

impl<'a> Section<'a> {
    pub fn has_bits(&self) -> bool {
        !Cubin::is_without_bits(self.kind)
    }

    pub fn is_relocations(&self) -> bool {
        matches!(self.kind, REL | RELA)
    }

    /// The function whose code this is.
    pub fn function(&self) -> Option<&'a str> {
        self.name.strip_prefix(".text.")
    }
}

impl Symbol<'_> {
    pub fn kind(&self) -> u8 {
        self.info & 15
    }

    pub fn is_kernel(&self) -> bool {
        self.kind() == KIND_FUNCTION && self.other & OTHER_KERNEL != 0 && self.section.is_some()
    }

    pub fn is_managed(&self) -> bool {
        self.kind() == KIND_OBJECT && self.other & OTHER_MANAGED != 0
    }

    pub fn is_undefined(&self) -> bool {
        self.row_section == 0
    }
}

fn elf(error: object::Error) -> Error {
    Error::Elf(error.to_string())
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes)
        .map_err(|_| Error::Elf(format!("the name {} is not UTF-8", String::from_utf8_lossy(bytes))))
}

impl<'a> Cubin<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Cubin<'a>> {
        let header = FileHeader64::<LE>::parse(bytes).map_err(elf)?;
        header.endian().map_err(elf)?;
        let found = header.e_machine(LE).0;
        if found != MACHINE_CUDA {
            return Err(Error::Machine { found, expected: MACHINE_CUDA });
        }
        let table = header.sections(LE, bytes).map_err(elf)?;
        let mut sections = Vec::with_capacity(table.len());
        for row in table.iter() {
            let mut section = Section {
                name: text(table.section_name(LE, row).map_err(elf)?)?,
                name_at: row.sh_name(LE),
                kind: row.sh_type(LE).0,
                flags: row.sh_flags(LE).0,
                address: row.sh_addr(LE),
                size: row.sh_size(LE),
                link: row.sh_link(LE),
                info: row.sh_info(LE),
                alignment: row.sh_addralign(LE),
                entry: row.sh_entsize(LE),
                data: &[],
            };
            if section.alignment > MOST_ALIGNMENT || !matches!(section.alignment.count_ones(), 0 | 1) {
                let (name, found) = (section.name.to_owned(), section.alignment);
                return Err(Error::Alignment { name, found, most: MOST_ALIGNMENT });
            }
            if section.has_bits() {
                section.data = row.data(LE, bytes).map_err(elf)?;
            }
            sections.push(section);
        }
        apart(bytes, &sections)?;
        let symbols = table.symbols(LE, bytes, SHT_SYMTAB).map_err(elf)?;
        if symbols.is_empty() {
            return Err(Error::Elf("it has no symbols".to_owned()));
        }
        let mut all = Vec::with_capacity(symbols.len());
        for (index, row) in symbols.enumerate() {
            let section = symbols.symbol_section(LE, row, index).map_err(elf)?.map(|section| section.0);
            if let Some(section) = section.filter(|section| *section >= sections.len()) {
                let count = sections.len();
                return Err(Error::SymbolSection { index: index.0, section: section as u32, count });
            }
            all.push(Symbol {
                name: text(symbols.symbol_name(LE, row).map_err(elf)?)?,
                info: row.st_info().0,
                other: row.st_other().0,
                row_section: row.st_shndx(LE).0,
                section,
                value: row.st_value(LE),
                size: row.st_size(LE),
            });
        }
        let names = header.section_strings_index(LE, bytes).map_err(elf)?.0;
        let by_name =
            sections.iter().enumerate().rev().map(|(index, section)| (section.name, index)).collect();
        let (symbol_table, strings) = (symbols.section().0, symbols.string_section().0);
        let is_executable = header.e_type(LE) == ET_EXEC;
        let cubin = Cubin {
            bytes,
            is_executable,
            sections,
            symbols: all,
            symbol_table,
            strings,
            names,
            capability: capability(header),
            abi: header.e_ident.abi_version,
            by_name,
        };
        for index in 0..cubin.sections.len() {
            if cubin.sections[index].is_relocations() {
                cubin.check_relocations(index)?;
            }
        }
        Ok(cubin)
    }

    pub fn named(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The section that relocations are for, which was checked to be there.
    pub fn target(&self, relocations: usize) -> &Section<'a> {
        &self.sections[self.sections[relocations].info as usize]
    }

    pub fn symbol(&self, section: &str, index: u32) -> Result<&Symbol<'a>> {
        self.symbols.get(index as usize).ok_or_else(|| Error::NoSymbol {
            section: section.to_owned(),
            symbol: index,
            count: self.symbols.len(),
        })
    }

    /// The section's name of a symbol; empty where it has none.
    pub fn section_of(&self, symbol: &Symbol<'a>) -> &'a str {
        symbol.section.map_or("", |section| self.sections[section].name)
    }

    /// The entries of a section of relocations as they stand, each with where it begins.
    pub fn relocation_rows(&self, index: usize) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        let section = self.sections[index];
        let entry = relocation_bytes(section.kind);
        section.data.chunks_exact(entry).enumerate().map(move |(n, row)| (n * entry, row))
    }

    pub fn relocations(&self, index: usize) -> impl Iterator<Item = Relocation> + '_ {
        let entry = relocation_bytes(self.sections[index].kind);
        self.relocation_rows(index).map(move |(at, row)| Relocation {
            at,
            offset: word64(row, 0),
            kind: word64(row, 8) as u32,
            symbol: (word64(row, 8) >> 32) as usize,
            addend: if entry == 24 { word64(row, 16) as i64 } else { 0 },
        })
    }

    fn check_relocations(&self, index: usize) -> Result<()> {
        let section = &self.sections[index];
        let name = || section.name.to_owned();
        let entry = relocation_bytes(section.kind);
        if !section.data.len().is_multiple_of(entry) {
            return Err(Error::Entries { section: name(), found: section.data.len(), entry });
        }
        let count = self.sections.len();
        let target = self.sections.get(section.info as usize).ok_or_else(|| Error::NoSection {
            section: name(),
            target: section.info,
            count,
        })?;
        for relocation in self.relocations(index) {
            self.symbol(section.name, relocation.symbol as u32)?;
            if relocation.offset >= target.size {
                return Err(Error::RelocationOffset {
                    section: name(),
                    target: target.name.to_owned(),
                    offset: relocation.offset,
                    bytes: target.size,
                });
            }
        }
        Ok(())
    }

    /// Whether sections of this type take no room in the file.
    pub fn is_without_bits(kind: u32) -> bool {
        matches!(kind, NULL | NO_BITS) || NO_BITS_GPU.contains(&kind)
    }
}

/// Flags have it in their lowest byte up to version 7 of the ABI, in the second from 8 on.
fn capability(header: &FileHeader64<LE>) -> u32 {
    let flags = header.e_flags(LE).0;
    let shift = if header.e_ident.abi_version >= 8 { 8 } else { 0 };
    flags >> shift & 0xff
}

fn relocation_bytes(kind: u32) -> usize {
    if kind == RELA { 24 } else { 16 }
}

/// No byte belongs to two sections.
fn apart(bytes: &[u8], sections: &[Section<'_>]) -> Result<()> {
    let start = bytes.as_ptr() as usize;
    let mut ranges: Vec<_> = sections
        .iter()
        .filter(|section| !section.data.is_empty())
        .map(|section| (section.data.as_ptr() as usize - start, section.data.len(), section.name))
        .collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if pair[0].0 + pair[0].1 > pair[1].0 {
            return Err(Error::Overlap { first: pair[0].2.to_owned(), second: pair[1].2.to_owned() });
        }
    }
    Ok(())
}

pub fn word16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from(word16(bytes, at)) | u32::from(word16(bytes, at + 2)) << 16
}

pub fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from(word32(bytes, at)) | u64::from(word32(bytes, at + 4)) << 32
}
