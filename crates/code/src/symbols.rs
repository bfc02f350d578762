//! The symbols of any 64-bit little-endian ELF file: shared libraries and cubins.

use object::LittleEndian as LE;
use object::elf::{FileHeader64, SHT_DYNSYM, SHT_SYMTAB};
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym};

use crate::cubin::Cubin;
use crate::elf;

pub const SYMBOL_OBJECT: u8 = crate::cubin::KIND_OBJECT;

/// A named symbol and the name of the section that it lies in.
#[derive(Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    pub name: &'a [u8],
    /// Empty for an undefined or absolute symbol.
    pub section: &'a [u8],
    pub kind: u8,
    pub size: u64,
}

/// Every named symbol of the symbol tables; none where it is no such file. A table that leaves the file is left out.
pub fn symbols(bytes: &[u8]) -> Vec<Symbol<'_>> {
    let Some(sections) = sections(bytes) else { return Vec::new() };
    let mut all = Vec::new();
    for kind in [SHT_SYMTAB, SHT_DYNSYM] {
        let Ok(table) = sections.symbols(LE, bytes, kind) else { continue };
        for (index, row) in table.enumerate() {
            let Some(name) = table.symbol_name(LE, row).ok().filter(|name| !name.is_empty()) else {
                continue;
            };
            let section = table.symbol_section(LE, row, index).ok().flatten();
            let section = section.and_then(|index| sections.section(index).ok());
            let section = section.and_then(|row| sections.section_name(LE, row).ok()).unwrap_or_default();
            all.push(Symbol { name, section, kind: row.st_type().0, size: row.st_size(LE) });
        }
    }
    all
}

/// Whether a file that begins as a 64-bit little-endian ELF file has all its sections, so that a reader that trusts
/// the headers stays inside it.
pub fn is_whole(bytes: &[u8]) -> bool {
    let Some(sections) = sections(bytes) else { return false };
    sections
        .iter()
        .all(|section| Cubin::is_without_bits(section.sh_type(LE).0) || section.data(LE, bytes).is_ok())
}

fn sections(bytes: &[u8]) -> Option<SectionTable<'_, FileHeader64<LE>>> {
    elf::header(bytes)?.sections(LE, bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use rekindle_code_samples::synthetic;

    use super::*;

    #[test]
    fn symbols_are_found_with_their_sections() {
        let file = synthetic(&[".nv.global"], &[("counter", 1, 1, 4), ("outside", 0, 0, 0)]);
        assert!(is_whole(&file));
        let symbols = symbols(&file);
        assert_eq!(
            symbols[0],
            Symbol { name: b"counter", section: b".nv.global", kind: SYMBOL_OBJECT, size: 4 }
        );
        assert_eq!(symbols[1].section, b"");
    }

    #[test]
    fn this_program_has_symbols() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(is_whole(&bytes));
        assert!(symbols(&bytes).iter().any(|symbol| symbol.name == b"main" && symbol.section == b".text"));
    }

    #[test]
    fn a_cut_file_is_not_whole() {
        let mut file = synthetic(&[], &[("a", 0, 0, 0)]);
        let table = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
        file[table + 64 + 32..table + 64 + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(!is_whole(&file));
        assert!(!is_whole(&file[..file.len() - 1]));
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(flips in proptest::collection::vec((0usize..600, any::<u8>()), 0..20), cut in 0usize..600) {
            let mut file = synthetic(&[".nv.global"], &[("counter", 1, 1, 4)]);
            for (at, value) in flips {
                if let Some(byte) = file.get_mut(at) { *byte = value }
            }
            file.truncate(cut.max(6));
            let _ = (is_whole(&file), symbols(&file).len());
        }
    }
}
