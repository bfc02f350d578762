//! A chunk as a manifest refers to it, written as one short line:
//! `raw 2097152 2097152 <hash>` (encoding, bytes, bytes stored, hash), or `zero 2097152`.

use std::fmt;
use std::str::FromStr;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::hash::ContentHash;

/// The largest chunk that is read or written.
pub const LARGEST_CHUNK: u64 = 16 << 20;

/// How a chunk's contents are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// As they are, from the first byte of the file.
    Raw,
    /// As one zstd frame.
    Zstd,
    /// All zero, so not at all.
    Zero,
}

/// Some contents: which, how long, and how they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRef {
    /// Of the contents, not of how they are kept. All-zero chunks carry none; theirs is zero.
    pub hash: ContentHash,
    pub bytes: u64,
    pub stored: u64,
    pub encoding: Encoding,
}

impl ChunkRef {
    pub fn zero(bytes: u64) -> ChunkRef {
        ChunkRef { hash: ContentHash::NONE, bytes, stored: 0, encoding: Encoding::Zero }
    }

    /// The chunk's file name within the store's `chunks/XY/`; none for zeros.
    pub(crate) fn file_name(&self) -> Option<String> {
        file_name(self.hash, self.encoding)
    }
}

/// One content has one file name for each way of keeping it, so images never disagree about what
/// is in a file.
pub(crate) fn file_name(hash: ContentHash, encoding: Encoding) -> Option<String> {
    match encoding {
        Encoding::Raw => Some(hash.to_string()),
        Encoding::Zstd => Some(format!("{hash}.zst")),
        Encoding::Zero => None,
    }
}

impl fmt::Display for ChunkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChunkRef { hash, bytes, stored, encoding } = self;
        match encoding {
            Encoding::Raw => write!(f, "raw {bytes} {stored} {hash}"),
            Encoding::Zstd => write!(f, "zstd {bytes} {stored} {hash}"),
            Encoding::Zero => write!(f, "zero {bytes}"),
        }
    }
}

impl Serialize for ChunkRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ChunkRef {
    /// Copies no text: a manifest has thousands of them, and is read by whoever begins a restore.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ChunkRef, D::Error> {
        struct Line;
        impl Visitor<'_> for Line {
            type Value = ChunkRef;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a chunk's line")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ChunkRef, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Line)
    }
}

impl FromStr for ChunkRef {
    type Err = String;

    fn from_str(text: &str) -> Result<ChunkRef, String> {
        let wrong = |what: &str| format!("the chunk {text:?} is not understood: {what}");
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| wrong("a size is a whole number"));
        let mut fields = text.split(' ');
        let [encoding, bytes, stored, hash, more] = [(); 5].map(|()| fields.next());
        let chunk = match (encoding, bytes, stored, hash, more) {
            (Some("zero"), Some(bytes), None, ..) => ChunkRef::zero(number(bytes)?),
            (Some(encoding @ ("raw" | "zstd")), Some(bytes), Some(stored), Some(hash), None) => ChunkRef {
                hash: hash.parse().map_err(wrong)?,
                bytes: number(bytes)?,
                stored: number(stored)?,
                encoding: if encoding == "raw" { Encoding::Raw } else { Encoding::Zstd },
            },
            _ => return Err(wrong("it is neither `zero BYTES` nor `raw|zstd BYTES STORED HASH`")),
        };
        if chunk.bytes == 0 || chunk.bytes > LARGEST_CHUNK {
            return Err(wrong("a chunk has from 1 byte to 16 MiB"));
        }
        let fits = match chunk.encoding {
            Encoding::Raw => chunk.stored == chunk.bytes,
            Encoding::Zstd => chunk.stored > 0 && chunk.stored < chunk.bytes,
            Encoding::Zero => true,
        };
        if !fits {
            return Err(wrong("what is stored must be as long (raw) or shorter (zstd)"));
        }
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn written_and_read_back() {
        for text in [
            "zero 4096".to_string(),
            format!("raw 2097152 2097152 {}", ContentHash::of(b"a")),
            format!("zstd 2097152 1234 {}", ContentHash::of(b"b")),
        ] {
            assert_eq!(text.parse::<ChunkRef>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let hash = ContentHash::of(b"a");
        for text in [
            String::new(),
            "zero".into(),
            "zero 0".into(),
            "zero -1".into(),
            "zero 99999999999".into(),
            format!("raw 10 9 {hash}"),
            format!("zstd 10 10 {hash}"),
            format!("zstd 10 0 {hash}"),
            format!("lz4 10 5 {hash}"),
            "raw 10 10 abc".into(),
            format!("raw 10 10 {hash} more"),
        ] {
            assert!(text.parse::<ChunkRef>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,100}") {
            let _ = text.parse::<ChunkRef>();
        }
    }
}
