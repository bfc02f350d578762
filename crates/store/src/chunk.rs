//! One chunk between memory and its bytes in the store: hashing, zeros, compression where it pays,
//! and the check on the way back.

use std::cell::RefCell;

use zstd::bulk::Compressor;

use crate::hash::ContentHash;
use crate::manifest::{ChunkRef, Encoding, PartKind};

/// The fastest level that compresses; higher ones cost more time than disk.
const LEVEL: i32 = 1;
/// How many spans of how many bytes are compressed to see whether a chunk is worth it.
const SAMPLES: usize = 4;
const SAMPLE_BYTES: usize = 4096;

/// What chunk size suits a part.
pub fn chunk_bytes_for(kind: &PartKind, bytes: u64) -> u64 {
    const SMALL: u64 = 64 << 10;
    const LARGE: u64 = 2 << 20;
    match kind {
        PartKind::GpuBuffer | PartKind::Pinned => LARGE,
        _ => (bytes / 64).clamp(SMALL, LARGE).next_power_of_two().min(LARGE),
    }
}

/// How many parts in a hundred compression must save. Restoring a GPU buffer is bound by memory
/// bandwidth, which decompression is several times below, so there it must save a lot of reading.
fn least_saving(kind: &PartKind) -> usize {
    match kind {
        PartKind::GpuBuffer | PartKind::Pinned => 50,
        _ => 10,
    }
}

/// Whether every byte is zero. Stops at the first that is not.
pub(crate) fn is_zero(data: &[u8]) -> bool {
    match data.split_first() {
        Some((first, rest)) => *first == 0 && *rest == data[..rest.len()],
        None => true,
    }
}

/// How much of `data` lies in pages that are not all zero.
pub(crate) fn filled(data: &[u8]) -> u64 {
    const PAGE: usize = 4096;
    data.chunks(PAGE).filter(|page| !is_zero(page)).map(|page| page.len() as u64).sum()
}

/// The zstd frame of `data`, if it is so much shorter that keeping it pays.
pub(crate) fn compress(kind: &PartKind, data: &[u8]) -> Option<Vec<u8>> {
    thread_local! {
        /// Making one takes longer than looking at a chunk that does not compress.
        static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    }
    COMPRESSOR.with_borrow_mut(|compressor| {
        let compressor = match compressor {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(LEVEL).ok()?),
        };
        compress_with(compressor, kind, data)
    })
}

fn compress_with(compressor: &mut Compressor<'_>, kind: &PartKind, data: &[u8]) -> Option<Vec<u8>> {
    let limit = |bytes: usize| bytes - bytes * least_saving(kind) / 100;
    if data.len() > 2 * SAMPLES * SAMPLE_BYTES {
        let stride = data.len() / SAMPLES;
        let sample: Vec<u8> =
            (0..SAMPLES).flat_map(|n| &data[n * stride..n * stride + SAMPLE_BYTES]).copied().collect();
        let mut sink = vec![0; zstd::zstd_safe::compress_bound(sample.len())];
        let length = compressor.compress_to_buffer(&sample, &mut sink).ok()?;
        if length > limit(sample.len()) {
            return None;
        }
    }
    let mut frame = vec![0; limit(data.len())];
    let length = compressor.compress_to_buffer(data, &mut frame).ok()?;
    frame.truncate(length);
    (length > 0 && length < data.len()).then_some(frame)
}

/// Puts a chunk's contents into `into`, which is as long as they are, from what was stored.
pub fn decode(chunk: &ChunkRef, stored: &[u8], into: &mut [u8]) -> Result<(), String> {
    if into.len() as u64 != chunk.bytes {
        return Err(format!("it holds {} bytes, {} were asked for", chunk.bytes, into.len()));
    }
    if stored.len() as u64 != chunk.stored {
        return Err(format!("it is {} bytes long, its manifest says {}", stored.len(), chunk.stored));
    }
    match chunk.encoding {
        Encoding::Zero => {
            into.fill(0);
            return Ok(());
        }
        Encoding::Raw if stored.len() != into.len() => {
            return Err(format!("it keeps {} bytes as they are, and holds {}", stored.len(), into.len()));
        }
        Encoding::Raw => into.copy_from_slice(stored),
        Encoding::Zstd => {
            let length = zstd::bulk::decompress_to_buffer(stored, into)
                .map_err(|error| format!("it does not decompress ({error})"))?;
            if length != into.len() {
                return Err(format!("it decompresses to {length} bytes, not {}", into.len()));
            }
        }
    }
    match_hash(chunk.hash, ContentHash::of(into))
}

/// Compares what was read with what was written.
pub(crate) fn match_hash(expected: ContentHash, found: ContentHash) -> Result<(), String> {
    if expected != found {
        return Err(format!("its contents hash to {found}, not {expected}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        blake3::Hasher::new().finalize_xof().fill(&mut out);
        out
    }

    #[test]
    fn noise_stays_raw_and_text_is_compressed() {
        assert_eq!(compress(&PartKind::CpuFile, &noise(1 << 20)), None);
        let text = b"a page of a program ".repeat(50_000);
        let frame = compress(&PartKind::CpuFile, &text).unwrap();
        assert!(frame.len() < text.len() / 10);
        let chunk = ChunkRef {
            hash: ContentHash::of(&text),
            bytes: text.len() as u64,
            stored: frame.len() as u64,
            encoding: Encoding::Zstd,
        };
        let mut back = vec![1; text.len()];
        decode(&chunk, &frame, &mut back).unwrap();
        assert_eq!(back, text);
    }

    #[test]
    fn compression_that_saves_little_is_not_kept() {
        // A quarter of each sample is compressible.
        let mut data = noise(1 << 20);
        data.chunks_mut(1024).for_each(|span| span[..256].fill(7));
        assert!(compress(&PartKind::CpuFile, &data).is_some());
        assert!(compress(&PartKind::GpuBuffer, &data).is_none());
    }

    #[test]
    fn a_promising_sample_of_noise_stays_raw() {
        let mut data = noise(1 << 20);
        for n in 0..SAMPLES {
            data[n * (1 << 18)..][..SAMPLE_BYTES].fill(1);
        }
        assert_eq!(compress(&PartKind::CpuFile, &data), None);
    }

    #[test]
    fn zeros_are_seen() {
        assert!(is_zero(&[]) && is_zero(&[0]) && is_zero(&[0; 5000]));
        let mut data = vec![0; 5000];
        for at in [0, 1, 2500, 4999] {
            data[at] = 1;
            assert!(!is_zero(&data), "{at}");
            data[at] = 0;
        }
    }

    #[test]
    fn chunk_sizes() {
        assert_eq!(chunk_bytes_for(&PartKind::GpuBuffer, 1), 2 << 20);
        assert_eq!(chunk_bytes_for(&PartKind::CpuFile, 0), 64 << 10);
        assert_eq!(chunk_bytes_for(&PartKind::CpuFile, 10 << 20), 256 << 10);
        assert_eq!(chunk_bytes_for(&PartKind::CpuFile, 10 << 30), 2 << 20);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_decode_to_wrong_contents(
            stored in proptest::collection::vec(any::<u8>(), 1..200), bytes in 1usize..4096,
        ) {
            for encoding in [Encoding::Raw, Encoding::Zstd] {
                let chunk = ChunkRef {
                    hash: ContentHash::of(b"other"), bytes: bytes as u64, stored: stored.len() as u64, encoding,
                };
                prop_assert!(decode(&chunk, &stored, &mut vec![0; bytes]).is_err());
            }
        }
    }
}
