//! The container that nvcc makes: code for several GPUs, as cubins and PTX, each perhaps compressed.
//!
//! ```text
//! container   magic u32 · version u16 · header bytes u16 · bytes of all entries u64
//! entry       kind u16 · version u16 · header bytes u32 · padded payload u64 · payload u32 · …
//!             compute capability u32 at 28 · flags u64 at 40 · payload before compression u64 at 56
//! ```
//!
//! Input is not trusted: an entry that leaves the bytes ends the walk of [`entries`], and [`read`] then gives an error.

use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::prepare::Whole;

pub const MAGIC: u32 = 0xba55_ed50;
pub const CONTAINER_HEADER: usize = 16;
pub const ENTRY_HEADER: usize = 64;
/// No cubin is larger; a size beyond it is a damaged header.
const MOST: u64 = 1 << 30;
const COMPRESSED_LZ4: u64 = 0x2000;
const COMPRESSED_ZSTD: u64 = 0x8000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Ptx,
    Cubin,
    Other(u16),
}

/// Code for one GPU architecture.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub kind: EntryKind,
    /// Compute capability: 90 is 9.0.
    pub capability: u32,
    /// Bytes of [`Entry::contents`], as the header says.
    pub size: u64,
    compression: u64,
    payload: &'a [u8],
}

pub fn is_fatbin(bytes: &[u8]) -> bool {
    u32_at(bytes, 0) == Some(MAGIC)
}

/// Whether the container's own length stays within `bytes`, so that a reader that trusts it does.
pub fn is_whole(bytes: &[u8]) -> bool {
    body(bytes).is_some()
}

/// Bytes of the container that begins here and ends inside `bytes`, header and all.
pub fn size(bytes: &[u8]) -> Option<usize> {
    body(bytes).map(|body| body.len() + usize::from(u16_at(bytes, 6).unwrap_or_default()))
}

/// The entries of a container, in order; empty where `bytes` is none.
pub fn entries(bytes: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let mut rest = body(bytes).unwrap_or_default();
    std::iter::from_fn(move || {
        let (entry, next) = entry(rest)?;
        rest = next;
        Some(entry)
    })
}

/// The entries of a container, in order, or what is wrong with it.
pub fn read(bytes: &[u8]) -> Result<Vec<Entry<'_>>> {
    let end = || Error::FatbinEnd { found: bytes.len(), expected: u64_at(bytes, 8).unwrap_or(0) };
    let body = body(bytes).ok_or_else(end)?;
    let mut rest = body;
    let mut all = Vec::new();
    while let Some((found, next)) = entry(rest) {
        all.push(found);
        rest = next;
    }
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Error::FatbinEntry { at: body.len() - rest.len() });
    }
    Ok(all)
}

/// The cubin that the driver would load for a GPU of `capability` (90 is 9.0), or why that is not for us to say.
pub fn choose(bytes: &[u8], capability: u32) -> Result<std::result::Result<Entry<'_>, Whole>> {
    let all = read(bytes)?;
    let same_major = |entry: &&Entry<'_>| {
        entry.kind == EntryKind::Cubin
            && entry.capability / 10 == capability / 10
            && entry.capability <= capability
    };
    let newest = all.iter().filter(same_major).map(|entry| entry.capability).max();
    let fitting: Vec<_> = all
        .iter()
        .filter(|entry| entry.kind == EntryKind::Cubin && Some(entry.capability) == newest)
        .collect();
    match fitting[..] {
        [one] => Ok(Ok(*one)),
        [] if all.iter().any(|entry| entry.kind == EntryKind::Ptx && entry.capability <= capability) => {
            Ok(Err(Whole::Ptx))
        }
        [] => Err(Error::FatbinCapability { major: capability / 10, minor: capability % 10 }),
        _ => Ok(Err(Whole::SeveralCubins(fitting.len()))),
    }
}

fn body(bytes: &[u8]) -> Option<&[u8]> {
    let header = u16_at(bytes, 6)? as usize;
    if !is_fatbin(bytes) || header < CONTAINER_HEADER {
        return None;
    }
    let size = usize::try_from(u64_at(bytes, 8)?).ok()?;
    bytes.get(header..header.checked_add(size)?)
}

fn entry(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let header = u32_at(bytes, 4)? as usize;
    let padded = usize::try_from(u64_at(bytes, 8)?).ok()?;
    if header < ENTRY_HEADER {
        return None;
    }
    let payload = bytes.get(header..header.checked_add(padded)?)?;
    let next = &bytes[header + padded..];
    let compression = u64_at(bytes, 40)? & (COMPRESSED_LZ4 | COMPRESSED_ZSTD);
    let payload = match compression {
        0 => payload,
        _ => payload.get(..u32_at(bytes, 16)? as usize)?,
    };
    let entry = Entry {
        kind: match u16_at(bytes, 0)? {
            1 => EntryKind::Ptx,
            2 => EntryKind::Cubin,
            other => EntryKind::Other(other),
        },
        capability: u32_at(bytes, 28)?,
        size: if compression == 0 { padded as u64 } else { u64_at(bytes, 56)? },
        compression,
        payload,
    };
    Some((entry, next))
}

impl<'a> Entry<'a> {
    /// The code itself; `None` where it can't be decompressed to its stated size, or that size is over `limit`.
    pub fn contents(&self, limit: u64) -> Option<Cow<'a, [u8]>> {
        if self.size > limit {
            return None;
        }
        let size = usize::try_from(self.size).ok()?;
        let contents = match self.compression {
            0 => return Some(Cow::Borrowed(self.payload)),
            COMPRESSED_LZ4 => lz4_flex::block::decompress(self.payload, size).ok()?,
            _ => zstd::bulk::decompress(self.payload, size).ok()?,
        };
        (contents.len() == size).then_some(Cow::Owned(contents))
    }

    /// The code itself.
    pub fn unpack(&self) -> Result<Cow<'a, [u8]>> {
        if self.size > MOST {
            return Err(Error::FatbinSize { found: self.size, most: MOST });
        }
        self.contents(MOST).ok_or_else(|| {
            Error::FatbinPacked(format!("{} packed bytes did not give {}", self.payload.len(), self.size))
        })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_le_bytes)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use rekindle_code_samples::{Content, Packing, container};

    use super::*;

    fn sample() -> Vec<u8> {
        let text = b".version 7.0 ".repeat(40);
        container(&[
            (Content::Cubin, 80, b"plain***", Packing::Plain),
            (Content::Cubin, 90, &text, Packing::Lz4),
            (Content::Ptx, 90, &text, Packing::Zstd),
        ])
    }

    #[test]
    fn entries_come_back_whatever_their_compression() {
        let file = sample();
        assert!(is_fatbin(&file) && is_whole(&file));
        let all: Vec<_> = entries(&file).collect();
        assert_eq!(all.iter().map(|e| e.capability).collect::<Vec<_>>(), [80, 90, 90]);
        assert_eq!(&*all[0].contents(100).unwrap(), b"plain***");
        let text = b".version 7.0 ".repeat(40);
        assert_eq!(&*all[1].contents(1000).unwrap(), &text);
        assert_eq!((all[2].kind, &*all[2].contents(1000).unwrap()), (EntryKind::Ptx, &text[..]));
        assert!(all[2].contents(519).is_none(), "over the limit");
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(flips in proptest::collection::vec((0usize..400, any::<u8>()), 0..8), cut in 0usize..400) {
            let mut file = sample();
            for (at, value) in flips {
                if let Some(byte) = file.get_mut(at) { *byte = value }
            }
            file.truncate(cut);
            let _ = read(&file);
            for entry in entries(&file) {
                let _ = entry.contents(1 << 20);
            }
        }
    }
}
