//! Writing a cubin anew with some sections empty and others changed; all keep their numbers.

use std::collections::HashMap;

use crate::cubin::{Cubin, Section, word32, word64};

const HEADER: usize = 64;
const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;

pub(crate) struct Writer<'a> {
    cubin: &'a Cubin<'a>,
    dropped: Vec<bool>,
    changed: HashMap<usize, Vec<u8>>,
}

impl<'a> Writer<'a> {
    pub fn new(cubin: &'a Cubin<'a>) -> Writer<'a> {
        Writer { cubin, dropped: vec![false; cubin.sections.len()], changed: HashMap::new() }
    }

    pub fn drop_section(&mut self, index: usize) {
        self.dropped[index] = true;
    }

    pub fn replace(&mut self, index: usize, contents: Vec<u8>) {
        self.changed.insert(index, contents);
    }

    /// Changes eight bytes of a section, where it has them.
    pub fn write_word(&mut self, index: usize, at: usize, change: impl FnOnce(u64) -> u64) {
        let contents = self.contents(index);
        if let Some(place) = contents.get_mut(at..at + 8) {
            let word = change(word64(place, 0));
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Makes the symbol whose row begins at `at` an empty one.
    pub fn blank_symbol(&mut self, at: usize) {
        let table = self.cubin.symbol_table;
        if let Some(row) = self.contents(table).get_mut(at..at + SYMBOL) {
            row.fill(0);
        }
    }

    fn contents(&mut self, index: usize) -> &mut Vec<u8> {
        let data = self.cubin.sections[index].data;
        self.changed.entry(index).or_insert_with(|| data.to_vec())
    }

    pub fn finish(mut self) -> Vec<u8> {
        let names = self.section_names();
        self.symbol_names();
        let mut file = self.cubin.bytes[..HEADER].to_vec();
        let mut headers = Vec::with_capacity(self.cubin.sections.len() * SECTION_HEADER);
        for (index, section) in self.cubin.sections.iter().enumerate() {
            if self.dropped[index] {
                headers.extend_from_slice(&[0; SECTION_HEADER]);
                continue;
            }
            let data = self.changed.get(&index).map_or(section.data, Vec::as_slice);
            if section.has_bits() {
                file.resize(file.len().next_multiple_of(section.alignment.max(1) as usize), 0);
            }
            headers.extend_from_slice(&header(section, names[index], file.len(), data));
            file.extend_from_slice(data);
        }
        file.resize(file.len().next_multiple_of(8), 0);
        let table = file.len() as u64;
        file.extend_from_slice(&headers);
        file[40..48].copy_from_slice(&table.to_le_bytes());
        // No segments: the driver goes by sections.
        file[32..40].fill(0);
        file[56..58].fill(0);
        file
    }

    /// Makes the table of section names anew: where each begins.
    fn section_names(&mut self) -> Vec<u32> {
        if self.one_table() {
            return self.cubin.sections.iter().map(|section| section.name_at).collect();
        }
        let mut strings = Strings::new();
        let sections = self.cubin.sections.iter().zip(&self.dropped);
        let at =
            sections.map(|(section, dropped)| if *dropped { 0 } else { strings.add(section.name) }).collect();
        self.changed.insert(self.cubin.names, strings.bytes);
        at
    }

    fn symbol_names(&mut self) {
        if self.one_table() {
            return;
        }
        let mut strings = Strings::new();
        let symbols = &self.cubin.symbols;
        let table = self.contents(self.cubin.symbol_table);
        for (row, symbol) in table.chunks_exact_mut(SYMBOL).zip(symbols) {
            let name = if word32(row, 0) == 0 { 0 } else { strings.add(symbol.name) };
            row[..4].copy_from_slice(&name.to_le_bytes());
        }
        self.changed.insert(self.cubin.strings, strings.bytes);
    }

    /// Whether sections and symbols have their names in one table, which then stays as it is.
    fn one_table(&self) -> bool {
        self.cubin.names == self.cubin.strings
    }
}

/// Strings that each end in NUL, behind an empty one.
struct Strings {
    bytes: Vec<u8>,
}

impl Strings {
    fn new() -> Strings {
        Strings { bytes: vec![0] }
    }

    fn add(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        at
    }
}

fn header(section: &Section<'_>, name: u32, offset: usize, data: &[u8]) -> [u8; SECTION_HEADER] {
    let size = if section.has_bits() { data.len() as u64 } else { section.size };
    let mut row = [0; SECTION_HEADER];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        row[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&name.to_le_bytes());
    put(&section.kind.to_le_bytes());
    put(&section.flags.to_le_bytes());
    put(&section.address.to_le_bytes());
    put(&(offset as u64).to_le_bytes());
    put(&size.to_le_bytes());
    put(&section.link.to_le_bytes());
    put(&section.info.to_le_bytes());
    put(&section.alignment.to_le_bytes());
    put(&section.entry.to_le_bytes());
    row
}
