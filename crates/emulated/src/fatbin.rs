//! Fatbins of which the emulated GPU uses the PTX, and those that [`write`] puts linked PTX in.
//!
//! An entry of kind [`LINKED`] is ours: one of several PTX texts that make one module together, where those of PTX's own
//! kind are alternatives to each other. What [`write`] makes is therefore measured and carried like any other fatbin by
//! whoever knows fatbins.

use std::borrow::Cow;

use rekindle_code::Result;
use rekindle_code::fatbin::{self, CONTAINER_HEADER as HEADER, ENTRY_HEADER as ENTRY, EntryKind, MAGIC};

/// Kind of an entry of our own linker.
pub(crate) const LINKED: u16 = 0x524b;
/// In the header of an entry of our own linker.
const REGISTER_LIMIT: usize = 48;

/// What one fatbin holds, of what the emulated GPU can use.
#[derive(Debug, Default)]
pub(crate) struct Fatbin<'a> {
    /// PTX texts by architecture (90 is sm_90).
    pub ptx: Vec<(u32, Cow<'a, [u8]>)>,
    /// Texts that make one module together.
    pub linked: Vec<Cow<'a, [u8]>>,
    /// Architectures there is only machine code for.
    pub machine: Vec<u32>,
}

/// The most registers of a thread that the linking allowed; zero where nobody said.
pub(crate) fn register_limit(bytes: &[u8]) -> u32 {
    let first = bytes.get(HEADER..HEADER + ENTRY).filter(|_| fatbin::is_fatbin(bytes));
    let first = first.filter(|entry| entry[..2] == LINKED.to_le_bytes());
    let limit = first.and_then(|entry| entry[REGISTER_LIMIT..REGISTER_LIMIT + 4].try_into().ok());
    limit.map_or(0, u32::from_le_bytes)
}

pub(crate) fn read(bytes: &[u8]) -> Result<Fatbin<'_>> {
    let mut found = Fatbin::default();
    for entry in fatbin::read(bytes)? {
        match entry.kind {
            EntryKind::Ptx => found.ptx.push((entry.capability, entry.unpack()?)),
            EntryKind::Other(LINKED) => found.linked.push(entry.unpack()?),
            _ => found.machine.push(entry.capability),
        }
    }
    Ok(found)
}

/// A fatbin whose texts make one module together, and the most registers that its threads may have (zero: any).
pub(crate) fn write(texts: &[&[u8]], register_limit: u32) -> Vec<u8> {
    let mut entries = Vec::new();
    for text in texts {
        let padded = text.len().next_multiple_of(8);
        let mut entry = [0_u8; ENTRY];
        entry[0..2].copy_from_slice(&LINKED.to_le_bytes());
        entry[2..4].copy_from_slice(&0x101_u16.to_le_bytes());
        entry[4..8].copy_from_slice(&(ENTRY as u32).to_le_bytes());
        entry[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
        entry[28..32].copy_from_slice(&90_u32.to_le_bytes());
        entry[40..48].copy_from_slice(&1_u64.to_le_bytes());
        entry[REGISTER_LIMIT..REGISTER_LIMIT + 4].copy_from_slice(&register_limit.to_le_bytes());
        entries.extend_from_slice(&entry);
        entries.extend_from_slice(text);
        entries.resize(entries.len() + padded - text.len(), 0);
    }
    let mut bytes = Vec::with_capacity(HEADER + entries.len());
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&1_u16.to_le_bytes());
    bytes.extend_from_slice(&(HEADER as u16).to_le_bytes());
    bytes.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    bytes.append(&mut entries);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linked_texts_come_back() {
        let text = b".version 8.0 .version 8.0 .version 8.0 .version 8.0 ".as_slice();
        let linked = write(&[text, b"x"], 38);
        assert_eq!(
            (register_limit(&linked), register_limit(text), register_limit(&linked[..20])),
            (38, 0, 0)
        );
        let fatbin = read(&linked).unwrap();
        assert_eq!(fatbin.linked[0].as_ref(), &[text, &[0; 4]].concat()[..]);
        assert_eq!(fatbin.linked.len(), 2);
    }
}
