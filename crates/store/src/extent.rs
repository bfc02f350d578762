//! Extents of a file that is kept whole: the chunks of a part that lies in a file of its own.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::chunk;
use crate::error::{Error, Result};
use crate::manifest::{ChunkRef, Encoding, Part};
use crate::sparse;

/// How much is read before it is hashed, while it is still in the processor's cache.
const STRIDE: usize = 256 << 10;

/// Reads and checks what is kept as it is, from `offset` of the file.
pub(crate) fn read(chunk: &ChunkRef, file: &File, path: &Path, offset: u64, into: &mut [u8]) -> Result<()> {
    let damaged = |reason| Error::Damaged { path: path.to_path_buf(), reason };
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            let found = file.metadata().map_or(0, |found| found.len());
            let least = offset + chunk.bytes;
            damaged(format!("it is {found} bytes long, its manifest says {least} at least"))
        }
        _ => Error::io("read", path, 0, error),
    };
    let mut hasher = blake3::Hasher::new();
    let mut at = offset;
    for stride in into.chunks_mut(STRIDE) {
        file.read_exact_at(stride, at).map_err(failed)?;
        if chunk.encoding == Encoding::Raw {
            hasher.update(stride);
        } else if !chunk::is_zero(stride) {
            return Err(damaged(format!("it is not all zero from {offset} on, as its manifest says")));
        }
        at += stride.len() as u64;
    }
    match chunk.encoding {
        Encoding::Raw => chunk::match_hash(chunk.hash, hasher.finalize().into()).map_err(damaged),
        _ => Ok(()),
    }
}

impl Part {
    /// Checks the extent of this number in the part's own file, which is open: also where the image is no more. What is a
    /// hole is not read.
    pub fn check_extent(&self, number: usize, file: &File, path: &Path, scratch: &mut Vec<u8>) -> Result<()> {
        let bad = |reason| Error::BadPart { part: self.name.clone(), reason };
        let chunk = self.chunks.get(number).ok_or_else(|| bad(format!("it has no extent {number}")))?;
        let offset = number as u64 * self.chunk_bytes;
        if chunk.encoding == Encoding::Zero {
            let hole = sparse::is_hole(file, offset..offset + chunk.bytes);
            if hole.map_err(|error| Error::io("read", path, 0, error))? {
                return Ok(());
            }
        }
        scratch.resize(chunk.bytes as usize, 0);
        read(chunk, file, path, offset, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::ContentHash;
    use crate::manifest::PartKind;

    #[test]
    fn each_extent_is_compared_and_holes_are_zeros() {
        const SIZE: usize = 1 << 20;
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; SIZE], 0).unwrap();
        file.set_len(3 * SIZE as u64).unwrap();
        let bytes = SIZE as u64;
        let raw =
            ChunkRef { hash: ContentHash::of(&[7; SIZE]), bytes, stored: bytes, encoding: Encoding::Raw };
        let part = Part {
            kind: PartKind::CpuPages,
            name: "anon-1".into(),
            bytes: 3 * bytes,
            attributes: serde_json::Value::Null,
            file: Some("pages/anon-1".into()),
            tail: 0,
            modified_ns: None,
            filled: None,
            chunk_bytes: bytes,
            chunks: vec![raw, ChunkRef::zero(bytes), ChunkRef::zero(bytes)],
        };
        let mut scratch = Vec::new();
        let mut check = |number| part.check_extent(number, &file, Path::new("anon-1"), &mut scratch);
        for number in 0..3 {
            check(number).unwrap();
        }
        assert!(matches!(check(3), Err(Error::BadPart { .. })));
        file.write_all_at(&[0; SIZE], bytes).unwrap();
        check(1).unwrap();
        file.write_all_at(&[1], 2 * bytes - 1).unwrap();
        file.write_all_at(&[6], 4711).unwrap();
        for number in 0..2 {
            assert!(check(number).unwrap_err().to_string().contains("anon-1"));
        }
        check(2).unwrap();
        file.set_len(4096).unwrap();
        assert!(check(0).unwrap_err().to_string().contains("it is 4096 bytes long"));
    }
}
