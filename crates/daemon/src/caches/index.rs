//! Which chunks one cache holds, and where: plain data.
//!
//! A cache is a number of memories of equal size, each a row of slots; a slot holds one chunk. A memory is made when the
//! first of its slots is given out. A chunk is found by the hash of its contents, so equal ones take one slot. Slots are
//! given to new chunks in place of those that matter least, then of those that were used longest ago; never in place of
//! chunks that somebody reads, that are on their way, or that the same image needs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rekindle_store::ContentHash;

/// One room for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub memory: u32,
    pub number: u32,
}

/// What is kept before what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// The image that needed it was removed.
    Removed,
    /// Of an image that was made, and never restored.
    Made,
    Restored,
}

#[derive(Debug)]
struct Entry {
    slot: Slot,
    priority: Priority,
    used: u64,
    readers: u32,
    ready: bool,
}

#[derive(Debug)]
pub struct Index {
    memories: u32,
    slots: u32,
    entries: HashMap<ContentHash, Entry>,
    taken: BTreeMap<Slot, ContentHash>,
    clock: u64,
}

impl Index {
    /// Of so many memories of so many slots each.
    pub fn new(memories: u32, slots: u32) -> Index {
        Index { memories, slots, entries: HashMap::new(), taken: BTreeMap::new(), clock: 0 }
    }

    /// Where these chunks lie, as far as they do. They stay there until given [back](Index::give_back).
    pub fn borrow(
        &mut self,
        chunks: impl Iterator<Item = ContentHash>,
        priority: Priority,
    ) -> HashMap<ContentHash, Slot> {
        self.clock += 1;
        let mut lent = HashMap::new();
        for chunk in chunks {
            let Some(entry) = self.entries.get_mut(&chunk).filter(|entry| entry.ready) else { continue };
            entry.used = self.clock;
            entry.priority = entry.priority.max(priority);
            if lent.insert(chunk, entry.slot).is_none() {
                entry.readers += 1;
            }
        }
        lent
    }

    pub fn give_back<'c>(&mut self, chunks: impl Iterator<Item = &'c ContentHash>) {
        for chunk in chunks {
            if let Some(entry) = self.entries.get_mut(chunk) {
                entry.readers = entry.readers.saturating_sub(1);
            }
        }
    }

    /// Gives slots to those of the chunks that have none, the first ones first, as far as there is room. Each is to be
    /// [filled](Index::filled) or [dropped](Index::drop_chunk).
    pub fn claim(&mut self, chunks: &[ContentHash], priority: Priority) -> Vec<(ContentHash, Slot)> {
        self.clock += 1;
        let mut missing = Vec::new();
        let mut seen = BTreeSet::new();
        for chunk in chunks.iter().filter(|chunk| seen.insert(**chunk)) {
            match self.entries.get_mut(chunk) {
                Some(entry) => {
                    entry.used = self.clock;
                    entry.priority = entry.priority.max(priority);
                }
                None => missing.push(*chunk),
            }
        }
        let rooms = self.rooms(missing.len(), priority);
        let mut claimed = Vec::new();
        for (chunk, slot) in missing.into_iter().zip(rooms) {
            if let Some(old) = self.taken.insert(slot, chunk) {
                self.entries.remove(&old);
            }
            let entry = Entry { slot, priority, used: self.clock, readers: 0, ready: false };
            self.entries.insert(chunk, entry);
            claimed.push((chunk, slot));
        }
        claimed
    }

    /// At most so many slots that may be taken, in an order that keeps neighbours together.
    fn rooms(&self, count: usize, priority: Priority) -> Vec<Slot> {
        let all =
            (0..self.memories).flat_map(|memory| (0..self.slots).map(move |number| Slot { memory, number }));
        let mut rooms: Vec<Slot> = all.filter(|slot| !self.taken.contains_key(slot)).take(count).collect();
        if rooms.len() < count {
            let idle = |entry: &&Entry| entry.ready && entry.readers == 0;
            let mut less: Vec<_> = self
                .entries
                .values()
                .filter(idle)
                .filter(|entry| entry.priority <= priority && entry.used < self.clock)
                .map(|entry| (entry.priority, entry.used, entry.slot))
                .collect();
            less.sort_unstable();
            rooms.extend(less.into_iter().map(|(_, _, slot)| slot).take(count - rooms.len()));
        }
        rooms.sort_unstable();
        rooms
    }

    pub fn filled(&mut self, chunk: &ContentHash) {
        if let Some(entry) = self.entries.get_mut(chunk) {
            entry.ready = true;
        }
    }

    /// Forgets a chunk that nobody reads.
    pub fn drop_chunk(&mut self, chunk: &ContentHash) {
        if let Some(entry) = self.entries.remove(chunk) {
            self.taken.remove(&entry.slot);
        }
    }

    /// The image that needed these chunks is no more; others that need them too bring them back up when they are used.
    pub fn demote(&mut self, chunks: impl Iterator<Item = ContentHash>) {
        for chunk in chunks {
            if let Some(entry) = self.entries.get_mut(&chunk) {
                entry.priority = Priority::Removed;
            }
        }
    }

    /// The time of the last claim or loan.
    pub fn now(&self) -> u64 {
        self.clock
    }

    /// Empties the memory that was used longest ago, if nobody uses some of it now, all of it was used before this time,
    /// and none of it matters more than this.
    pub fn drop_memory(
        &mut self,
        made: impl Iterator<Item = u32>,
        priority: Priority,
        before: u64,
    ) -> Option<u32> {
        let last_use = |memory: u32| {
            let held = self.entries.values().filter(|entry| entry.slot.memory == memory);
            let idle = |entry: &Entry| entry.ready && entry.readers == 0;
            let less = |entry: &Entry| entry.priority <= priority && entry.used < before;
            held.map(|entry| (idle(entry) && less(entry)).then_some(entry.used))
                .try_fold(0, |last, used| Some(last.max(used?)))
        };
        let memory = made.filter_map(|memory| Some((last_use(memory)?, memory))).min()?.1;
        let gone: Vec<ContentHash> =
            self.taken.iter().filter(|(slot, _)| slot.memory == memory).map(|(_, chunk)| *chunk).collect();
        gone.iter().for_each(|chunk| self.drop_chunk(chunk));
        Some(memory)
    }

    /// How many of these distinct chunks it holds.
    pub fn count(&self, chunks: impl Iterator<Item = ContentHash>) -> u64 {
        let ready = |chunk: &ContentHash| self.entries.get(chunk).is_some_and(|entry| entry.ready);
        chunks.filter(ready).count() as u64
    }

    /// How many slots are taken.
    pub fn taken(&self) -> u64 {
        self.taken.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(n: u32) -> ContentHash {
        ContentHash::of(&n.to_le_bytes())
    }

    fn chunks(range: std::ops::Range<u32>) -> Vec<ContentHash> {
        range.map(chunk).collect()
    }

    /// Puts them in; which of them got room.
    fn put(index: &mut Index, range: std::ops::Range<u32>, priority: Priority) -> Vec<Slot> {
        let claimed = index.claim(&chunks(range), priority);
        claimed.iter().for_each(|(chunk, _)| index.filled(chunk));
        claimed.into_iter().map(|(_, slot)| slot).collect()
    }

    fn has(index: &Index, n: u32) -> bool {
        index.count([chunk(n)].into_iter()) == 1
    }

    #[test]
    fn equal_content_takes_one_slot() {
        let mut index = Index::new(2, 4);
        let twice = [chunk(1), chunk(2), chunk(1)];
        assert_eq!(index.claim(&twice, Priority::Made).len(), 2);
        assert!(index.claim(&twice, Priority::Made).is_empty(), "on its way already");
        assert_eq!(index.taken(), 2);
        assert!(index.borrow(twice.into_iter(), Priority::Made).is_empty(), "not there yet");
        twice.iter().for_each(|chunk| index.filled(chunk));
        assert_eq!(index.borrow(twice.into_iter(), Priority::Made).len(), 2);
    }

    #[test]
    fn neighbours_lie_side_by_side() {
        let mut index = Index::new(2, 4);
        let slots = put(&mut index, 0..6, Priority::Made);
        let expected: Vec<_> = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
            .map(|(memory, number)| Slot { memory, number })
            .into();
        assert_eq!(slots, expected);
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_an_image_never_ousts_itself() {
        let mut index = Index::new(1, 4);
        put(&mut index, 0..2, Priority::Made);
        put(&mut index, 2..4, Priority::Made);
        index.claim(&chunks(0..2), Priority::Made);
        assert_eq!(put(&mut index, 4..6, Priority::Made).len(), 2);
        assert!(has(&index, 0) && has(&index, 1) && !has(&index, 2) && !has(&index, 3));
        assert_eq!(put(&mut index, 10..20, Priority::Made).len(), 4, "as much as there is room for");
        assert!((10..14).all(|n| has(&index, n)) && !has(&index, 14));
    }

    #[test]
    fn what_matters_more_stays() {
        let mut index = Index::new(1, 4);
        put(&mut index, 0..4, Priority::Restored);
        assert!(put(&mut index, 4..6, Priority::Made).is_empty());
        index.demote(chunks(0..1).into_iter());
        assert_eq!(put(&mut index, 4..6, Priority::Made).len(), 1);
        assert!(!has(&index, 0) && has(&index, 4));
        assert_eq!(put(&mut index, 6..8, Priority::Restored).len(), 2);
    }

    #[test]
    fn what_is_read_stays_until_it_was_given_back() {
        let mut index = Index::new(1, 2);
        put(&mut index, 0..2, Priority::Made);
        let lent = index.borrow(chunks(0..2).into_iter(), Priority::Made);
        let again = index.borrow(chunks(0..1).into_iter(), Priority::Made);
        assert!(put(&mut index, 2..4, Priority::Restored).is_empty());
        assert_eq!(index.drop_memory([0].into_iter(), Priority::Restored, u64::MAX), None);
        index.give_back(lent.keys());
        assert_eq!(put(&mut index, 2..4, Priority::Restored).len(), 1, "one is still read");
        assert!(has(&index, 0) && !has(&index, 1));
        index.give_back(again.keys());
        assert_eq!(put(&mut index, 4..6, Priority::Restored).len(), 2);
    }

    #[test]
    fn a_memory_that_is_dropped_is_the_one_that_was_idle_longest() {
        let mut index = Index::new(2, 2);
        put(&mut index, 0..2, Priority::Made);
        put(&mut index, 2..4, Priority::Made);
        index.claim(&chunks(0..1), Priority::Made);
        assert_eq!(index.drop_memory([0, 1].into_iter(), Priority::Removed, u64::MAX), None);
        assert_eq!(index.drop_memory([0, 1].into_iter(), Priority::Made, 1), None, "both were used since");
        assert_eq!(index.drop_memory([0, 1].into_iter(), Priority::Made, index.now()), Some(1));
        assert!(has(&index, 0) && has(&index, 1) && !has(&index, 2));
        index.claim(&chunks(5..6), Priority::Made);
        let dropped = index.drop_memory([1].into_iter(), Priority::Restored, u64::MAX);
        assert_eq!(dropped, None, "something is on its way to it");
    }

    #[test]
    fn a_chunk_that_could_not_be_filled_leaves_its_slot() {
        let mut index = Index::new(1, 1);
        index.claim(&chunks(0..1), Priority::Made);
        assert!(index.claim(&chunks(1..2), Priority::Restored).is_empty());
        index.drop_chunk(&chunk(0));
        assert_eq!(put(&mut index, 1..2, Priority::Made).len(), 1);
    }
}
