//! A reader of 64-bit little-endian ELF files, as far as finding symbols goes: shared libraries (is this our own
//! client?) and the GPU's cubins (which variables are there?). Input is not trusted: whatever lies outside the bytes
//! is absent.

/// An ELF file's section table.
pub struct Elf<'a> {
    bytes: &'a [u8],
    sections: usize,
    section_count: usize,
    names: usize,
}

/// A named symbol and the name of the section that it lies in.
#[derive(Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    pub name: &'a [u8],
    /// Empty for an undefined or absolute symbol.
    pub section: &'a [u8],
    pub kind: u8,
    pub size: u64,
}

pub const SYMBOL_OBJECT: u8 = 1;

const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;
const SECTION_SYMBOLS: u32 = 2;
const SECTION_NO_BITS: u32 = 8;
const SECTION_DYNAMIC_SYMBOLS: u32 = 11;
/// A cubin's own types of sections without contents: global, local, shared, reserved shared memory.
const SECTIONS_NO_BITS_GPU: [u32; 4] = [0x7000_0007, 0x7000_0009, 0x7000_000a, 0x7000_0015];

impl<'a> Elf<'a> {
    /// `None` where `bytes` do not begin as a 64-bit little-endian ELF file with a section table inside.
    pub fn parse(bytes: &'a [u8]) -> Option<Elf<'a>> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") || u16_at(bytes, 58)? as usize != SECTION_HEADER {
            return None;
        }
        let sections = usize::try_from(u64_at(bytes, 40)?).ok()?;
        let section_count = u16_at(bytes, 60)? as usize;
        let end = sections.checked_add(section_count * SECTION_HEADER)?;
        if end > bytes.len() {
            return None;
        }
        Some(Elf { bytes, sections, section_count, names: u16_at(bytes, 62)? as usize })
    }

    /// Whether all sections lie within the bytes, so that a reader that trusts the headers stays inside.
    pub fn is_whole(&self) -> bool {
        (0..self.section_count).all(|index| self.section(index).is_some())
    }

    /// Every named symbol of the symbol tables.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol<'a>> + '_ {
        (0..self.section_count).flat_map(move |index| {
            let table = match self.section_kind(index) {
                Some(SECTION_SYMBOLS | SECTION_DYNAMIC_SYMBOLS) => self.section(index).unwrap_or_default(),
                _ => &[],
            };
            let strings = self
                .header(index)
                .and_then(|header| u32_at(header, 40))
                .and_then(|link| self.section(link as usize))
                .unwrap_or_default();
            table.chunks_exact(SYMBOL).filter_map(move |row| self.symbol(row, strings))
        })
    }

    fn symbol(&self, row: &[u8], strings: &'a [u8]) -> Option<Symbol<'a>> {
        let name = string_at(strings, u32_at(row, 0)?)?;
        if name.is_empty() {
            return None;
        }
        let section = self.section_name(u16_at(row, 6)? as usize).unwrap_or_default();
        Some(Symbol { name, section, kind: row[4] & 15, size: u64_at(row, 16)? })
    }

    fn header(&self, index: usize) -> Option<&'a [u8]> {
        if index >= self.section_count {
            return None;
        }
        let start = self.sections + index * SECTION_HEADER;
        self.bytes.get(start..start + SECTION_HEADER)
    }

    fn section_kind(&self, index: usize) -> Option<u32> {
        u32_at(self.header(index)?, 4)
    }

    fn section_name(&self, index: usize) -> Option<&'a [u8]> {
        string_at(self.section(self.names)?, u32_at(self.header(index)?, 0)?)
    }

    /// A section's contents; empty for one that takes no room in the file.
    fn section(&self, index: usize) -> Option<&'a [u8]> {
        let header = self.header(index)?;
        let kind = u32_at(header, 4)?;
        if matches!(kind, 0 | SECTION_NO_BITS) || SECTIONS_NO_BITS_GPU.contains(&kind) {
            return Some(&[]);
        }
        let start = usize::try_from(u64_at(header, 24)?).ok()?;
        let size = usize::try_from(u64_at(header, 32)?).ok()?;
        self.bytes.get(start..start.checked_add(size)?)
    }
}

fn string_at(strings: &[u8], offset: u32) -> Option<&[u8]> {
    let rest = strings.get(offset as usize..)?;
    rest.iter().position(|byte| *byte == 0).map(|end| &rest[..end])
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_le_bytes)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An ELF file with one symbol table: (name, section index, kind, size), sections named by `sections` from 1 on.
    pub fn synthetic(sections: &[&str], symbols: &[(&str, u16, u8, u64)]) -> Vec<u8> {
        let mut names = vec![0];
        let mut offsets = Vec::new();
        for name in sections.iter().chain(&[".names", ".strtab", ".symtab"]) {
            offsets.push(names.len() as u32);
            names.extend_from_slice(name.as_bytes());
            names.push(0);
        }
        let mut strings = vec![0];
        let mut table = vec![0; SYMBOL];
        for (name, section, kind, size) in symbols {
            table.extend_from_slice(&(strings.len() as u32).to_le_bytes());
            table.extend_from_slice(&[*kind, 0]);
            table.extend_from_slice(&section.to_le_bytes());
            table.extend_from_slice(&0u64.to_le_bytes());
            table.extend_from_slice(&size.to_le_bytes());
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
        }
        let first = sections.len() as u32 + 1;
        let mut file = vec![0u8; 64];
        let mut headers = vec![0u8; SECTION_HEADER];
        let mut add = |name: u32, kind: u32, link: u32, contents: &[u8], file: &mut Vec<u8>| {
            let mut header = [0u8; SECTION_HEADER];
            header[0..4].copy_from_slice(&name.to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(contents.len() as u64).to_le_bytes());
            header[40..44].copy_from_slice(&link.to_le_bytes());
            headers.extend_from_slice(&header);
            file.extend_from_slice(contents);
        };
        for offset in &offsets[..sections.len()] {
            add(*offset, SECTION_NO_BITS, 0, &[], &mut file);
        }
        add(offsets[sections.len()], 3, 0, &names, &mut file);
        add(offsets[sections.len() + 1], 3, 0, &strings, &mut file);
        add(offsets[sections.len() + 2], SECTION_SYMBOLS, first + 1, &table, &mut file);
        let start = file.len() as u64;
        file.extend_from_slice(&headers);
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[40..48].copy_from_slice(&start.to_le_bytes());
        file[58..60].copy_from_slice(&(SECTION_HEADER as u16).to_le_bytes());
        file[60..62].copy_from_slice(&(first as u16 + 3).to_le_bytes());
        file[62..64].copy_from_slice(&(first as u16).to_le_bytes());
        file
    }

    #[test]
    fn symbols_are_found_with_their_sections() {
        let file = synthetic(&[".nv.global"], &[("counter", 1, 1, 4), ("outside", 0, 0, 0)]);
        let elf = Elf::parse(&file).unwrap();
        assert!(elf.is_whole());
        let symbols: Vec<_> = elf.symbols().collect();
        assert_eq!(
            symbols[0],
            Symbol { name: b"counter", section: b".nv.global", kind: SYMBOL_OBJECT, size: 4 }
        );
        assert_eq!(symbols[1].section, b"");
    }

    #[test]
    fn this_program_has_symbols() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        assert!(elf.is_whole());
        assert!(elf.symbols().any(|symbol| symbol.name == b"main" && symbol.section == b".text"));
    }

    #[test]
    fn a_cut_file_is_not_whole() {
        let mut file = synthetic(&[], &[("a", 0, 0, 0)]);
        let table = u64_at(&file, 40).unwrap() as usize;
        file[table + SECTION_HEADER + 32..table + SECTION_HEADER + 40]
            .copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(!Elf::parse(&file).unwrap().is_whole());
        assert!(Elf::parse(&file[..file.len() - 1]).is_none());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(flips in proptest::collection::vec((0usize..600, any::<u8>()), 0..20), cut in 0usize..600) {
            let mut file = synthetic(&[".nv.global"], &[("counter", 1, 1, 4)]);
            for (at, value) in flips {
                if let Some(byte) = file.get_mut(at) { *byte = value }
            }
            file.truncate(cut.max(6));
            if let Some(elf) = Elf::parse(&file) {
                let _ = (elf.is_whole(), elf.symbols().count());
            }
        }
    }
}
