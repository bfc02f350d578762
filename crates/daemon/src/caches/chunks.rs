//! What of an image can lie in a cache.

use std::collections::HashMap;

use rekindle_protocol::worker::{CACHE_SLOT, Cached};
use rekindle_store::{ContentHash, Encoding, Image, Part, PartKind};

/// One chunk of a buffer's contents.
pub struct Chunk<'i> {
    pub part: &'i str,
    pub number: u64,
    pub hash: ContentHash,
}

/// Where a chunk lies: the memory's number, and bytes from its start.
pub type ChunkLocation = (u32, u64);

/// All chunks of buffers on the first GPU that are not zero, in their order.
pub fn of(image: &Image) -> Vec<Chunk<'_>> {
    of_gpu(image, 0)
}

/// As [`of`], on the GPU at this place.
pub fn of_gpu(image: &Image, place: usize) -> Vec<Chunk<'_>> {
    let is_there = |part: &&Part| part.attributes["device"].as_u64().unwrap_or_default() == place as u64;
    let parts = image.parts(PartKind::GpuBuffer).filter(is_there);
    let chunks = |part: &'_ Part| {
        let numbered = part.chunks.iter().enumerate();
        numbered
            .filter(|(_, chunk)| chunk.encoding != Encoding::Zero)
            .map(|(number, chunk)| (number as u64, chunk.hash))
            .collect::<Vec<_>>()
    };
    parts
        .filter(|part| part.chunk_bytes == CACHE_SLOT)
        .flat_map(|part| {
            chunks(part).into_iter().map(|(number, hash)| Chunk { part: &part.name, number, hash })
        })
        .collect()
}

/// The first chunk of each content.
pub fn by_hash<'c, 'i>(chunks: &'c [Chunk<'i>]) -> HashMap<ContentHash, &'c Chunk<'i>> {
    chunks.iter().rev().map(|chunk| (chunk.hash, chunk)).collect()
}

/// Those that lie somewhere, neighbours in one row.
pub fn rows<'c, 'i: 'c>(
    chunks: impl Iterator<Item = &'c Chunk<'i>>,
    found: &HashMap<ContentHash, ChunkLocation>,
) -> Vec<Cached> {
    let mut rows: Vec<Cached> = Vec::new();
    for chunk in chunks {
        let Some(&(memory, offset)) = found.get(&chunk.hash) else { continue };
        match rows.last_mut() {
            Some(row)
                if row.part == chunk.part
                    && row.memory == memory
                    && row.first + row.count == chunk.number
                    && row.offset + row.count * CACHE_SLOT == offset =>
            {
                row.count += 1;
            }
            _ => rows.push(Cached {
                part: chunk.part.to_string(),
                first: chunk.number,
                count: 1,
                memory,
                offset,
                share: false,
            }),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_make_one_row() {
        let hash = |n: u64| ContentHash::of(&n.to_le_bytes());
        let chunk = |part, number, n| Chunk { part, number, hash: hash(n) };
        let chunks =
            [chunk("a", 0, 1), chunk("a", 1, 2), chunk("a", 3, 3), chunk("b", 0, 4), chunk("b", 1, 9)];
        let at = |slot: u64| (7, slot * CACHE_SLOT);
        let found = [(hash(1), at(4)), (hash(2), at(5)), (hash(3), at(6)), (hash(4), at(7))].into();
        let rows = rows(chunks.iter(), &found);
        let short: Vec<_> =
            rows.iter().map(|row| (&*row.part, row.first, row.count, row.offset / CACHE_SLOT)).collect();
        assert_eq!(short, [("a", 0, 2, 4), ("a", 3, 1, 6), ("b", 0, 1, 7)]);
    }
}
