//! Which chunks lie where in a cache that follows a program: what it has no more gives way to what is new.

use std::collections::HashMap;

use rekindle_protocol::worker::{CACHE_SLOT, Cached};
use rekindle_store::ContentHash;

use crate::caches::chunks::{self, Chunk, ChunkLocation};

pub(super) struct Slots {
    /// The memory's number.
    memory: u32,
    found: HashMap<ContentHash, ChunkLocation>,
    /// Where nothing lies.
    free: Vec<u64>,
}

impl Slots {
    pub(super) fn new(memory: u32, count: u64) -> Slots {
        let free = (0..count).map(|slot| slot * CACHE_SLOT).collect();
        Slots { memory, found: HashMap::new(), free }
    }

    pub(super) fn has(&self, hash: &ContentHash) -> bool {
        self.found.contains_key(hash)
    }

    /// Places for those of these chunks that have none, as far as there is room, and what is to be filled there. Chunks that are
    /// not among these lose theirs.
    pub(super) fn place(
        &mut self,
        chunks: &[Chunk<'_>],
    ) -> (HashMap<ContentHash, ChunkLocation>, Vec<Cached>) {
        let wanted = chunks::by_hash(chunks);
        let free = &mut self.free;
        self.found.retain(|hash, (_, offset)| {
            let stays = wanted.contains_key(hash);
            if !stays {
                free.push(*offset);
            }
            stays
        });
        let mut new: Vec<&Chunk<'_>> =
            wanted.values().copied().filter(|chunk| !self.has(&chunk.hash)).collect();
        new.sort_unstable_by_key(|chunk| (chunk.part, chunk.number));
        // Neighbours get neighbouring places, where those are free.
        self.free.sort_unstable();
        let count = new.len().min(self.free.len());
        let places: HashMap<ContentHash, ChunkLocation> = new
            .iter()
            .zip(self.free.drain(..count))
            .map(|(chunk, offset)| (chunk.hash, (self.memory, offset)))
            .collect();
        let into = chunks::rows(new.iter().copied(), &places);
        (places, into)
    }

    /// They are filled.
    pub(super) fn filled(&mut self, places: HashMap<ContentHash, ChunkLocation>) {
        self.found.extend(places);
    }

    /// Where chunks lie.
    pub(super) fn rows(&self, chunks: &[Chunk<'_>]) -> Vec<Cached> {
        chunks::rows(chunks.iter(), &self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(numbers: &[u64]) -> Vec<Chunk<'static>> {
        let hash = |n: u64| ContentHash::of(&n.to_le_bytes());
        numbers
            .iter()
            .enumerate()
            .map(|(at, n)| Chunk { part: "a", number: at as u64, hash: hash(*n) })
            .collect()
    }

    fn fill(slots: &mut Slots, numbers: &[u64]) -> Vec<(u64, u64, u64)> {
        let (places, into) = slots.place(&chunks(numbers));
        slots.filled(places);
        into.iter().map(|row| (row.first, row.count, row.offset / CACHE_SLOT)).collect()
    }

    #[test]
    fn only_what_is_new_is_filled_and_takes_the_places_of_what_went() {
        let mut slots = Slots::new(7, 4);
        assert_eq!(fill(&mut slots, &[10, 11, 12]), [(0, 3, 0)]);
        assert_eq!(fill(&mut slots, &[10, 21, 12]), [(1, 1, 1)]);
        assert_eq!(fill(&mut slots, &[32, 21]), [(0, 1, 0)]);
        assert_eq!(fill(&mut slots, &[10, 21, 32]), [(0, 1, 2)]);
        assert_eq!(fill(&mut slots, &[10, 21, 32]), []);
        let rows = slots.rows(&chunks(&[10, 21, 32, 99]));
        let lie: Vec<_> = rows.iter().map(|row| (row.first, row.count, row.offset / CACHE_SLOT)).collect();
        assert_eq!(lie, [(0, 1, 2), (1, 1, 1), (2, 1, 0)]);
    }

    #[test]
    fn what_has_no_room_is_left_out_and_the_same_twice_lies_there_once() {
        let mut slots = Slots::new(7, 2);
        assert_eq!(fill(&mut slots, &[1, 1, 2, 3]), [(0, 1, 0), (2, 1, 1)]);
        let hash = |n: u64| ContentHash::of(&n.to_le_bytes());
        assert!(slots.has(&hash(1)) && slots.has(&hash(2)) && !slots.has(&hash(3)));
        assert_eq!(slots.rows(&chunks(&[1, 1, 2, 3])).iter().map(|row| row.count).sum::<u64>(), 3);
    }
}
