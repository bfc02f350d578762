//! One cache: its index and the memories that its slots lie in.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rekindle_protocol::worker::CACHE_SLOT;
use rekindle_store::ContentHash;

use super::chunks::ChunkLocation;
use super::index::{Index, Priority, Slot};
use super::limits::divide;
use super::memory::Memory;
use super::shared::SharedBuffers;

pub struct Cache {
    pub index: Index,
    pub memories: BTreeMap<u32, Arc<Memory>>,
    pub memory_bytes: u64,
    /// Buffers that lie in memories of their own.
    pub shared: SharedBuffers,
    limit: u64,
}

impl Cache {
    pub fn new(limit: u64) -> Cache {
        let (memories, slots) = divide(limit);
        let memory_bytes = u64::from(slots) * CACHE_SLOT;
        let shared = SharedBuffers::default();
        Cache { index: Index::new(memories, slots), memories: BTreeMap::new(), memory_bytes, shared, limit }
    }

    pub fn is_off(&self) -> bool {
        self.limit < CACHE_SLOT
    }

    /// Where a slot lies, for workers.
    pub fn at(&self, slot: Slot) -> Option<ChunkLocation> {
        let memory = self.memories.get(&slot.memory)?;
        Some((memory.described.number, u64::from(slot.number) * CACHE_SLOT))
    }

    /// Borrows what it has of the chunks, and adds where each lies.
    pub fn borrow(
        &mut self,
        chunks: impl Iterator<Item = ContentHash>,
        priority: Priority,
        found: &mut HashMap<ContentHash, ChunkLocation>,
        memories: &mut BTreeMap<u32, Arc<Memory>>,
    ) -> Vec<ContentHash> {
        let lent = self.index.borrow(chunks, priority);
        for (chunk, slot) in &lent {
            if let (Some(at), Some(memory)) = (self.at(*slot), self.memories.get(&slot.memory)) {
                found.insert(*chunk, at);
                memories.insert(memory.described.number, memory.clone());
            }
        }
        lent.into_keys().collect()
    }

    /// Takes bytes as they are held, not as they are used.
    pub fn held_bytes(&self) -> u64 {
        self.memories.len() as u64 * self.memory_bytes + self.shared.bytes()
    }

    /// Gives up what nobody uses and matters no more than this until so much more fits; false if it does not. Chunks that
    /// were used at this time or later stay, and so do the buffers `kept`.
    pub fn fit(&mut self, bytes: u64, priority: Priority, time: u64, kept: &[ContentHash]) -> bool {
        while self.held_bytes() + bytes > self.limit {
            let made: Vec<u32> = self.memories.keys().copied().collect();
            match self.index.drop_memory(made.into_iter(), priority, time) {
                Some(memory) => drop(self.memories.remove(&memory)),
                None if self.shared.give_up(priority, kept).is_some() => {}
                None => return false,
            }
        }
        true
    }

    /// Gives a memory back that nobody uses; how many bytes that are.
    pub fn give_back(&mut self) -> Option<u64> {
        let made: Vec<u32> = self.memories.keys().copied().collect();
        match self.index.drop_memory(made.into_iter(), Priority::Restored, u64::MAX) {
            Some(memory) => self.memories.remove(&memory).map(|_| self.memory_bytes),
            None => self.shared.give_up(Priority::Restored, &[]),
        }
    }

    pub fn shown(&self) -> serde_json::Value {
        serde_json::json!({
            "limit_bytes": self.limit,
            "held_bytes": self.held_bytes(),
            "used_bytes": self.index.taken() * CACHE_SLOT + self.shared.bytes(),
            "shared_bytes": self.shared.bytes(),
        })
    }
}
