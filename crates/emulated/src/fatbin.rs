//! Fatbins: the container that compilers put PTX and machine code in, and that [`write`] puts linked PTX in.
//!
//! ```text
//!  header 16:  magic ba55ed50 u32 · version u16 · header bytes u16 · bytes of the entries u64
//!  entry  64:  kind u16 · version u16 · header bytes u32 · padded payload bytes u64 · packed bytes u32 · … ·
//!              architecture u32 (at 28) · … · flags u64 (at 40) · … · unpacked bytes u64 (at 56) · payload
//! ```
//! Kind 1 is PTX, kind 2 machine code. Kind [`LINKED`] is ours: one of several PTX texts that make one module
//! together, where entries of kind 1 are alternatives to each other. What [`write`] makes is therefore measured and
//! carried like any other fatbin by whoever knows fatbins.

use std::borrow::Cow;

pub(crate) const MAGIC: u32 = 0xba55_ed50;
/// Kind of an entry of our own linker.
pub(crate) const LINKED: u16 = 0x524b;
const PTX: u16 = 1;
const HEADER: usize = 16;
const ENTRY: usize = 64;
/// In the header of an entry of our own linker.
const REGISTER_LIMIT: usize = 48;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
/// No PTX text is larger; a size beyond it is a damaged header.
const MOST: u64 = 1 << 30;

/// What one fatbin holds, of what the emulated GPU can use.
#[derive(Debug, Default)]
pub(crate) struct Fatbin<'a> {
    /// PTX texts by architecture (90 is sm_90).
    pub ptx: Vec<(u32, Cow<'a, [u8]>)>,
    /// Texts that make one module together.
    pub linked: Vec<Cow<'a, [u8]>>,
    /// Architectures there is only machine code for.
    pub machine: Vec<u32>,
    /// Bytes of the container.
    pub size: usize,
}

/// Why a fatbin cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Damage {
    #[error("the fatbin ends after {found} bytes, and its header says {expected}")]
    Short { found: usize, expected: u64 },
    #[error("the fatbin's entry at byte {at} has a header of {found} bytes; at least 64 were expected")]
    Entry { at: usize, found: usize },
    #[error("the fatbin's entry at byte {at} cannot be decompressed: {cause}")]
    Packed { at: usize, cause: String },
}

/// The most registers of a thread that the linking allowed; zero where nobody said.
pub(crate) fn register_limit(bytes: &[u8]) -> u32 {
    let first = bytes.get(HEADER..HEADER + ENTRY).filter(|entry| u16_at(entry, 0) == LINKED);
    first.filter(|_| is_fatbin(bytes)).map_or(0, |entry| u32_at(entry, REGISTER_LIMIT))
}

pub(crate) fn is_fatbin(bytes: &[u8]) -> bool {
    bytes.get(..4) == Some(&MAGIC.to_le_bytes())
}

pub(crate) fn read(bytes: &[u8]) -> Result<Fatbin<'_>, Damage> {
    let short = |expected: u64| Damage::Short { found: bytes.len(), expected };
    if bytes.len() < HEADER {
        return Err(short(HEADER as u64));
    }
    let header = usize::from(u16_at(bytes, 6));
    let expected = (header as u64).saturating_add(u64_at(bytes, 8));
    let end =
        usize::try_from(expected).ok().filter(|end| *end <= bytes.len()).ok_or_else(|| short(expected))?;
    let mut fatbin = Fatbin { size: end, ..Fatbin::default() };
    let mut at = header;
    while at < end {
        let entry = &bytes[at..end];
        if entry.len() < ENTRY {
            return Err(Damage::Entry { at, found: entry.len() });
        }
        let payload_at = u32_at(entry, 4) as usize;
        if payload_at < ENTRY {
            return Err(Damage::Entry { at, found: payload_at });
        }
        let size = u64_at(entry, 8);
        let next = (payload_at as u64).saturating_add(size);
        let payload = usize::try_from(next).ok().and_then(|next| entry.get(payload_at..next));
        let payload = payload.ok_or_else(|| short((at as u64).saturating_add(next)))?;
        let architecture = u32_at(entry, 28);
        match u16_at(entry, 0) {
            PTX => fatbin.ptx.push((architecture, unpack(entry, payload, at)?)),
            LINKED => fatbin.linked.push(unpack(entry, payload, at)?),
            _ => fatbin.machine.push(architecture),
        }
        at += next as usize;
    }
    Ok(fatbin)
}

fn unpack<'a>(entry: &[u8], payload: &'a [u8], at: usize) -> Result<Cow<'a, [u8]>, Damage> {
    let (packed, flags, unpacked) = (u32_at(entry, 16) as usize, u64_at(entry, 40), u64_at(entry, 56));
    if flags & (FLAG_LZ4 | FLAG_ZSTD) == 0 {
        return Ok(Cow::Borrowed(payload));
    }
    let damage = |cause: String| Damage::Packed { at, cause };
    if unpacked > MOST {
        return Err(damage(format!("it says {unpacked} bytes unpacked; at most {MOST} were expected")));
    }
    let packed = payload.get(..packed).ok_or_else(|| damage(format!("it says {packed} bytes packed")))?;
    let text = if flags & FLAG_ZSTD != 0 {
        zstd::bulk::decompress(packed, unpacked as usize).map_err(|error| damage(error.to_string()))?
    } else {
        lz4_flex::block::decompress(packed, unpacked as usize).map_err(|error| damage(error.to_string()))?
    };
    Ok(Cow::Owned(text))
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

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ptx_entry(payload: &[u8], flags: u64, packed: u32, unpacked: u64) -> Vec<u8> {
        let mut bytes = write(&[payload], 0);
        bytes[16..18].copy_from_slice(&PTX.to_le_bytes());
        bytes[32..36].copy_from_slice(&packed.to_le_bytes());
        bytes[56..64].copy_from_slice(&flags.to_le_bytes());
        bytes[72..80].copy_from_slice(&unpacked.to_le_bytes());
        bytes
    }

    #[test]
    fn packed_and_plain_texts_come_back() {
        let text = b".version 8.0 .version 8.0 .version 8.0 .version 8.0 ".as_slice();
        let linked = write(&[text, b"x"], 38);
        assert_eq!(
            (register_limit(&linked), register_limit(text), register_limit(&linked[..20])),
            (38, 0, 0)
        );
        let fatbin = read(&linked).unwrap();
        assert_eq!(fatbin.linked[0].as_ref(), &[text, &[0; 4]].concat()[..]);
        assert_eq!((fatbin.linked.len(), fatbin.size), (2, linked.len()));

        for (flag, packed) in
            [(FLAG_LZ4, lz4_flex::block::compress(text)), (FLAG_ZSTD, zstd::bulk::compress(text, 3).unwrap())]
        {
            let bytes = ptx_entry(&packed, flag, packed.len() as u32, text.len() as u64);
            assert_eq!(read(&bytes).unwrap().ptx, [(90, Cow::Borrowed(text))]);
        }
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_panic(at in 0_usize..160, byte: u8, cut in 0_usize..160) {
            let text = [7_u8; 70];
            let mut bytes = ptx_entry(&text, FLAG_LZ4, 70, 200);
            let len = bytes.len();
            bytes[at % len] = byte;
            let _ = read(&bytes);
            let _ = read(&bytes[..cut.min(len)]);
        }
    }
}
