//! A part that is written piece by piece, in any order and from many threads.
//!
//! A piece that covers whole chunks goes straight to the store; the rest waits until its chunk is
//! full or the part is finished. What was never written is zero. Writing a byte twice is refused,
//! for its chunk may be stored already.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rekindle_parallel as parallel;

use crate::error::{Error, Result};
use crate::hash::ContentHash;
use crate::manifest::{ChunkRef, Manifest, Part};
use crate::staging::Staging;

/// Writes one part; see `Draft::part` and `Staging::part`.
#[derive(Debug)]
pub struct PartWriter {
    staging: Staging,
    part: Part,
    chunks: Mutex<HashMap<u64, Chunk>>,
    /// Where the part is entered once it is finished.
    manifest: Option<Arc<Mutex<Manifest>>>,
}

#[derive(Debug)]
enum Chunk {
    /// Some of it is here; the spans are those written, in order, none touching the next.
    Partial {
        data: Vec<u8>,
        written: Vec<Range<usize>>,
    },
    /// All of it was written and a thread is about to store it.
    Complete,
    Stored(ChunkRef),
}

impl PartWriter {
    pub(crate) fn new(staging: Staging, part: Part) -> PartWriter {
        PartWriter { staging, part, chunks: Mutex::default(), manifest: None }
    }

    pub(crate) fn entering(mut self, manifest: Arc<Mutex<Manifest>>) -> PartWriter {
        self.manifest = Some(manifest);
        self
    }

    pub fn name(&self) -> &str {
        &self.part.name
    }

    /// How long the chunks are: writing whole ones, from multiples of it, copies nothing.
    pub fn chunk_bytes(&self) -> u64 {
        self.part.chunk_bytes
    }

    /// Writes `data` at `offset`.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let length = data.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > self.part.bytes) {
            return Err(Error::OutOfRange {
                part: self.part.name.clone(),
                bytes: self.part.bytes,
                offset,
                length,
            });
        }
        let size = self.part.chunk_bytes;
        let mut pieces = Vec::new();
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min((size - at % size) as usize));
            pieces.push((at, piece));
            at += piece.len() as u64;
            rest = after;
        }
        parallel::map(
            parallel::threads(),
            pieces.len(),
            || (),
            |(), n| self.write_piece(pieces[n].0, pieces[n].1),
        )?;
        Ok(())
    }

    /// Writes one whole chunk, which begins at `offset` and whose hash the caller knows.
    pub fn write_chunk(&self, offset: u64, data: &[u8], hash: ContentHash) -> Result<()> {
        let number = offset / self.part.chunk_bytes;
        let whole = offset.is_multiple_of(self.part.chunk_bytes)
            && offset < self.part.bytes
            && data.len() == self.length_of(number);
        if !whole {
            let reason = format!("{} bytes at {offset} are no chunk of it", data.len());
            return Err(Error::BadPart { part: self.part.name.clone(), reason });
        }
        match self.chunks().entry(number) {
            Entry::Vacant(entry) => entry.insert(Chunk::Complete),
            Entry::Occupied(_) => return Err(self.written_twice(offset, data)),
        };
        let chunk = self.staging.stage_hashed(&self.part.kind, data, hash)?;
        self.chunks().insert(number, Chunk::Stored(chunk));
        Ok(())
    }

    /// Whether the store has the chunk at `offset` if it has this hash, or it is all zero.
    pub fn has(&self, offset: u64, hash: ContentHash) -> Result<bool> {
        let number = offset / self.part.chunk_bytes;
        self.staging.has(self.length_of(number) as u64, hash)
    }

    /// Enters the chunk at `offset`, which has this hash, if the store has it or it is all zero: its bytes are not needed
    /// then.
    pub fn enter_known(&self, offset: u64, hash: ContentHash) -> Result<bool> {
        let number = offset / self.part.chunk_bytes;
        let Some(chunk) = self.staging.known(self.length_of(number) as u64, hash)? else { return Ok(false) };
        match self.chunks().entry(number) {
            Entry::Vacant(entry) => entry.insert(Chunk::Stored(chunk)),
            Entry::Occupied(_) => return Err(self.written_twice(offset, &[])),
        };
        Ok(true)
    }

    /// Writes a piece that lies within one chunk.
    fn write_piece(&self, offset: u64, piece: &[u8]) -> Result<()> {
        let number = offset / self.part.chunk_bytes;
        let start = (offset % self.part.chunk_bytes) as usize;
        let full = self.length_of(number);
        if piece.len() == full {
            match self.chunks().entry(number) {
                Entry::Vacant(entry) => entry.insert(Chunk::Complete),
                Entry::Occupied(_) => return Err(self.written_twice(offset, piece)),
            };
            return self.store(number, piece);
        }
        let complete = {
            let mut chunks = self.chunks();
            let chunk = chunks
                .entry(number)
                .or_insert_with(|| Chunk::Partial { data: vec![0; full], written: Vec::new() });
            let Chunk::Partial { data, written } = chunk else {
                return Err(self.written_twice(offset, piece));
            };
            if !note(written, start..start + piece.len()) {
                return Err(self.written_twice(offset, piece));
            }
            data[start..start + piece.len()].copy_from_slice(piece);
            if !covers(written, full) {
                return Ok(());
            }
            let data = std::mem::take(data);
            *chunk = Chunk::Complete;
            data
        };
        self.store(number, &complete)
    }

    fn store(&self, number: u64, data: &[u8]) -> Result<()> {
        let chunk = self.staging.stage(&self.part.kind, data)?;
        self.chunks().insert(number, Chunk::Stored(chunk));
        Ok(())
    }

    /// Stores what is left and returns the part. Every `write_at` must have succeeded.
    pub fn finish(mut self) -> Result<Part> {
        let mut chunks = std::mem::take(&mut *self.chunks());
        let mut waiting = Vec::new();
        let mut refs = Vec::new();
        for number in 0..self.part.bytes.div_ceil(self.part.chunk_bytes) {
            refs.push(match chunks.remove(&number) {
                Some(Chunk::Stored(chunk)) => chunk,
                Some(Chunk::Partial { data, .. }) => {
                    waiting.push((number as usize, data));
                    ChunkRef::zero(self.length_of(number) as u64)
                }
                Some(Chunk::Complete) => {
                    return Err(Error::BadPart {
                        part: self.part.name,
                        reason: "a write to it failed".into(),
                    });
                }
                None => ChunkRef::zero(self.length_of(number) as u64),
            });
        }
        let stored = parallel::map(
            parallel::threads(),
            waiting.len(),
            || (),
            |(), at| self.staging.stage(&self.part.kind, &waiting[at].1),
        )?;
        for ((number, _), chunk) in waiting.iter().zip(stored) {
            refs[*number] = chunk;
        }
        self.part.chunks = refs;
        if let Some(manifest) = &self.manifest {
            manifest.lock().unwrap_or_else(PoisonError::into_inner).parts.push(self.part.clone());
        }
        Ok(self.part)
    }

    fn length_of(&self, number: u64) -> usize {
        self.part.chunk_bytes.min(self.part.bytes - number * self.part.chunk_bytes) as usize
    }

    fn written_twice(&self, offset: u64, piece: &[u8]) -> Error {
        Error::WrittenTwice { part: self.part.name.clone(), offset, end: offset + piece.len() as u64 }
    }

    fn chunks(&self) -> MutexGuard<'_, HashMap<u64, Chunk>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether all of a chunk was written.
fn covers(written: &[Range<usize>], full: usize) -> bool {
    matches!(written, [span] if *span == (0..full))
}

/// Adds a span to those written, joining it with its neighbours; false if it overlaps one.
fn note(written: &mut Vec<Range<usize>>, span: Range<usize>) -> bool {
    let at = written.partition_point(|other| other.end <= span.start);
    if written.get(at).is_some_and(|next| next.start < span.end) {
        return false;
    }
    written.insert(at, span);
    if at + 1 < written.len() && written[at].end == written[at + 1].start {
        written[at].end = written[at + 1].end;
        written.remove(at + 1);
    }
    if at > 0 && written[at - 1].end == written[at].start {
        written[at - 1].end = written[at].end;
        written.remove(at);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_join_and_overlaps_show() {
        let mut written = Vec::new();
        assert!(note(&mut written, 10..20));
        assert!(note(&mut written, 0..5));
        assert!(!note(&mut written, 4..6));
        assert!(!note(&mut written, 0..30));
        assert!(note(&mut written, 5..10));
        assert!(covers(&written, 20));
        assert!(note(&mut written, 25..30) && note(&mut written, 20..25));
        assert!(covers(&written, 30) && !covers(&written, 31));
    }
}
