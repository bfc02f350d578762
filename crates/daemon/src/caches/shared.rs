//! Whole buffers on one GPU, each in memory of its own, which instances map rather than copy: plain bookkeeping.
//!
//! A buffer is found by its contents, so equal ones are held once, whichever images they are of. Memory that an instance
//! has mapped stays with it whatever happens here; such a buffer is not given up, for nothing would be gained.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rekindle_protocol::tuning;
use rekindle_protocol::worker::{CACHE_SLOT, Cached};
use rekindle_store::{ContentHash, Image, Part, PartKind};

use super::index::Priority;
use super::memory::Memory;

struct Entry {
    memory: Arc<Memory>,
    priority: Priority,
    used: u64,
}

#[derive(Default)]
pub struct SharedBuffers {
    entries: HashMap<ContentHash, Entry>,
    clock: u64,
}

/// Whether nothing is to be shared.
pub fn is_off() -> bool {
    tuning::is(tuning::SHARE, "off")
}

/// The parts of an image that instances can share, with what they hold: whole buffers on the first GPU that programs
/// restored from it have not written to.
pub fn parts(image: &Image) -> Vec<(&Part, ContentHash)> {
    if is_off() {
        return Vec::new();
    }
    let unwritten = image.unwritten().unwrap_or_else(|error| {
        log::warn!("buffers are not shared: {error}");
        None
    });
    let unwritten: HashSet<String> = unwritten.into_iter().flatten().collect();
    let shared = |part: &&Part| {
        part.chunk_bytes == CACHE_SLOT
            // Of small ones, which hold many things, one is written to soon.
            && part.bytes > CACHE_SLOT
            && part.bytes.is_multiple_of(CACHE_SLOT)
            && part.attributes["device"].as_u64() == Some(0)
            && part.attributes["holds"] == "allocation"
            && unwritten.contains(&part.name)
    };
    image.parts(PartKind::GpuBuffer).filter(shared).map(|part| (part, contents_of(part))).collect()
}

/// All of a part, which lies in a memory of its own.
pub fn row(part: &Part, memory: u32) -> Cached {
    Cached {
        part: part.name.clone(),
        first: 0,
        count: part.bytes / CACHE_SLOT,
        memory,
        offset: 0,
        share: true,
    }
}

/// What a part holds, as a whole.
fn contents_of(part: &Part) -> ContentHash {
    let chunks = part.chunks.iter().flat_map(|chunk| {
        let length = chunk.bytes.to_le_bytes();
        chunk.hash.bytes().iter().copied().chain(length).collect::<Vec<u8>>()
    });
    ContentHash::of(&chunks.collect::<Vec<u8>>())
}

impl SharedBuffers {
    /// The memory with these contents, which counts as used now.
    pub fn find(&mut self, contents: &ContentHash, priority: Priority) -> Option<Arc<Memory>> {
        self.clock += 1;
        let entry = self.entries.get_mut(contents)?;
        (entry.used, entry.priority) = (self.clock, entry.priority.max(priority));
        Some(entry.memory.clone())
    }

    pub fn has(&self, contents: &ContentHash) -> bool {
        self.entries.contains_key(contents)
    }

    pub fn add(&mut self, contents: ContentHash, memory: Memory, priority: Priority) {
        self.clock += 1;
        self.entries.insert(contents, Entry { memory: Arc::new(memory), priority, used: self.clock });
    }

    pub fn bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.memory.described.bytes).sum()
    }

    /// Gives one up that nobody uses and that matters no more than this, the least and oldest first, but none of `kept`.
    /// How many bytes that gives back.
    pub fn give_up(&mut self, priority: Priority, kept: &[ContentHash]) -> Option<u64> {
        let idle = |(contents, entry): &(&ContentHash, &Entry)| {
            Arc::strong_count(&entry.memory) == 1 && entry.priority <= priority && !kept.contains(contents)
        };
        let (contents, _) =
            self.entries.iter().filter(idle).min_by_key(|(_, entry)| (entry.priority, entry.used))?;
        let contents = *contents;
        self.entries.remove(&contents).map(|entry| entry.memory.described.bytes)
    }

    /// The image that needed these is no more.
    pub fn demote(&mut self, contents: impl Iterator<Item = ContentHash>) {
        for contents in contents {
            if let Some(entry) = self.entries.get_mut(&contents) {
                entry.priority = Priority::Removed;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rekindle_protocol::worker::CacheMemory;

    use super::*;

    fn memory(bytes: u64) -> Memory {
        let descriptor = File::open("/dev/null").unwrap().into();
        Memory::of_gpu(CacheMemory { number: 1, bytes, device: Some(0) }, descriptor)
    }

    fn named(n: u8) -> ContentHash {
        ContentHash::of(&[n])
    }

    #[test]
    fn what_nobody_uses_is_given_up_the_least_and_oldest_first() {
        let mut shared = SharedBuffers::default();
        for n in 0..4 {
            shared.add(named(n), memory(10 + u64::from(n)), Priority::Made);
        }
        let mapped = shared.find(&named(0), Priority::Restored).unwrap();
        shared.demote([named(3)].into_iter());
        assert_eq!(shared.give_up(Priority::Made, &[named(1)]), Some(13), "of an image that was removed");
        assert_eq!(shared.give_up(Priority::Made, &[named(1)]), Some(12));
        assert_eq!(shared.give_up(Priority::Made, &[named(1)]), None);
        assert_eq!(shared.give_up(Priority::Restored, &[]), Some(11));
        assert_eq!(shared.give_up(Priority::Restored, &[]), None, "somebody uses it");
        drop(mapped);
        assert_eq!((shared.bytes(), shared.give_up(Priority::Made, &[])), (10, None), "it matters more");
        assert_eq!(shared.give_up(Priority::Restored, &[]), Some(10));
    }
}
