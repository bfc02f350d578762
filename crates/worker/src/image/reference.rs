//! What GPU memory holds while a program stands still, hashed by the processor before anything else is done: in the check mode
//! (`gpu.shadow=check`) an image that was written beside the program is compared with it.
//!
//! ```text
//!  program      ──runs──┬ stands still ──────────────────────────┬──runs──────────────────
//!  GPU memory           ═ copied out, hashed ═ shadow copy ═      └ drained ─▶ parts ─▶ compared
//! ```
//!
//! PARALLELGPUOS validates in the same way what it has guessed of kernels' writes (section 5).

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use rekindle_protocol::tuning;
use rekindle_store::{ChunkRef, ContentHash, Encoding, Part, PartWriter};

use super::contents::{Gpus, PartLocation, Pieces, TURNS, gpu};
use super::error::{Error, Result, device};
use super::progress::Progress;
use super::runs::Run;
use super::shadow::SaveTask;

/// By a part's name: the hash of each of its chunks.
pub(super) struct Reference(HashMap<String, Vec<ContentHash>>);

/// What is to be looked at for one: parts, with their bytes and those of their chunks, and what of them is saved.
pub(super) struct Places {
    parts: Vec<(String, u64, u64)>,
    runs: Vec<Run>,
}

impl Places {
    /// None unless it is wanted. The program stands still.
    pub(super) fn of(work: &SaveTask, runs: &[Run]) -> Option<Places> {
        let row = |(location, writer): &(PartLocation, PartWriter)| {
            (writer.name().to_string(), location.bytes, writer.chunk_bytes())
        };
        let places = || Places { parts: work.iter().map(row).collect(), runs: runs.to_vec() };
        tuning::is(tuning::SHADOW, "check").then(places)
    }
}

impl Reference {
    /// The devices have done all that they had to do when the program came to its stand.
    pub(super) fn take(gpus: &Gpus, places: &Places, stop: &AtomicBool) -> Result<Reference> {
        let Places { parts, runs } = places;
        let sizes: Vec<_> = runs.iter().map(|run| run.location.bytes).collect();
        let chunk = |number: usize| parts[number].2;
        let progress = Progress::new(&sizes, |number, at| at + chunk(runs[number].number), &[]);
        let pieces = Pieces::of(&progress, stop);
        let hashes = Mutex::new(HashMap::new());
        let Some(mut made) = pieces.blocks(gpus, None)? else { return Ok(Reference(HashMap::new())) };
        pieces.on_threads(&mut made, TURNS, |blocks| {
            let Some(block) = blocks.first_mut() else { return Ok(()) };
            while let Some(piece) = pieces.next()? {
                let Run { number, from, location } = &runs[piece.number];
                let address = location.address + piece.range.start;
                let copied = block.fetch_hashed(gpu(gpus, location)?, address, piece.count());
                let bytes = copied.and_then(|()| block.bytes(piece.count()));
                let hash = ContentHash::of(bytes.map_err(device("copy a buffer out to compare it"))?);
                let place = (*number, (from + piece.range.start) / chunk(*number));
                hashes.lock().unwrap_or_else(PoisonError::into_inner).insert(place, hash);
            }
            Ok(())
        })?;
        let hashes = hashes.into_inner().unwrap_or_else(PoisonError::into_inner);
        let of = |(number, (name, bytes, chunk)): (usize, &(String, u64, u64))| {
            let hash = |start: u64| {
                let zeros = || zeros((bytes - start).min(*chunk));
                hashes.get(&(number, start / chunk)).copied().unwrap_or_else(zeros)
            };
            (name.clone(), (0..*bytes).step_by(*chunk as usize).map(hash).collect())
        };
        let parts = parts.iter().enumerate().map(of);
        Ok(Reference(parts.collect()))
    }

    /// Fails, in a sentence, where a part is not what memory was.
    pub(super) fn check(&self, part: &Part) -> Result<()> {
        let wrong = |text: String| {
            Error::Refused(format!(
                "the image is not what GPU memory held when the program stood still: {text}"
            ))
        };
        let Some(hashes) = self.0.get(&part.name) else {
            return Err(wrong(format!("its part {:?} was not there", part.name)));
        };
        if hashes.len() != part.chunks.len() {
            let (has, had) = (part.chunks.len(), hashes.len());
            return Err(wrong(format!("its part {:?} has {has} chunks, memory had {had}", part.name)));
        }
        let differs = |(_, (chunk, hash)): &(usize, (&ChunkRef, &ContentHash))| content_of(chunk) != **hash;
        match part.chunks.iter().zip(hashes).enumerate().find(differs) {
            None => Ok(()),
            Some((number, (chunk, hash))) => {
                let at = number as u64 * part.chunk_bytes;
                Err(wrong(format!(
                    "byte {at} of its part {:?} begins a chunk with hash {}, memory had {hash}",
                    part.name,
                    content_of(chunk)
                )))
            }
        }
    }
}

fn zeros(bytes: u64) -> ContentHash {
    ContentHash::of(&vec![0; bytes as usize])
}

/// Zeros have no hash in an image.
fn content_of(chunk: &ChunkRef) -> ContentHash {
    match chunk.encoding {
        Encoding::Zero => zeros(chunk.bytes),
        _ => chunk.hash,
    }
}

#[cfg(test)]
mod tests {
    use rekindle_store::{PartKind, Staging, Store};

    use super::*;

    const CHUNK: usize = 2 << 20;

    /// A part of three chunks as it comes to an image; the last is of zeros, and shorter.
    fn part(bytes: &[u8]) -> Part {
        let directory = tempfile::tempdir().unwrap();
        let draft = Store::open(directory.path()).unwrap().begin("image").unwrap();
        let staging = Staging::open(draft.path()).unwrap();
        staging.put(PartKind::GpuBuffer, "buffer", serde_json::Value::Null, bytes).unwrap()
    }

    fn reference(bytes: &[u8]) -> Reference {
        let hashes = bytes.chunks(CHUNK).map(ContentHash::of).collect();
        Reference(HashMap::from([("buffer".to_string(), hashes)]))
    }

    fn bytes() -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..2 * CHUNK).map(|at| ((at * 31) >> 3) as u8).collect();
        bytes.resize(2 * CHUNK + 4096, 0);
        bytes
    }

    #[test]
    fn a_part_that_is_what_memory_was_is_right() {
        reference(&bytes()).check(&part(&bytes())).unwrap();
    }

    #[test]
    fn a_byte_that_is_another_is_found_wherever_it_is() {
        for at in [0, CHUNK - 1, CHUNK, 2 * CHUNK, 2 * CHUNK + 4095] {
            let mut torn = bytes();
            torn[at] ^= 1;
            let told = reference(&bytes()).check(&part(&torn)).unwrap_err().to_string();
            let chunk = at / CHUNK * CHUNK;
            assert!(told.contains(&format!("byte {chunk} of its part \"buffer\"")), "{told}");
        }
    }

    #[test]
    fn a_part_of_another_length_or_name_is_wrong() {
        let told = reference(&bytes()[..CHUNK]).check(&part(&bytes())).unwrap_err().to_string();
        assert!(told.contains("has 3 chunks, memory had 1"), "{told}");
        let told = Reference(HashMap::new()).check(&part(&bytes())).unwrap_err().to_string();
        assert!(told.contains("was not there"), "{told}");
    }
}
