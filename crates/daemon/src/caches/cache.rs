//! One cache: its index and the memories that its slots lie in.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rekindle_protocol::worker::CACHE_SLOT;
use rekindle_store::ContentHash;

use super::chunks::At;
use super::index::{Index, Priority, Slot};
use super::limits::divide;
use super::memory::Memory;

pub struct Cache {
    pub index: Index,
    pub memories: BTreeMap<u32, Arc<Memory>>,
    pub memory_bytes: u64,
    limit: u64,
}

impl Cache {
    pub fn new(limit: u64) -> Cache {
        let (memories, slots) = divide(limit);
        let memory_bytes = u64::from(slots) * CACHE_SLOT;
        Cache { index: Index::new(memories, slots), memories: BTreeMap::new(), memory_bytes, limit }
    }

    pub fn is_off(&self) -> bool {
        self.limit < CACHE_SLOT
    }

    /// Where a slot lies, for workers.
    pub fn at(&self, slot: Slot) -> Option<At> {
        let memory = self.memories.get(&slot.memory)?;
        Some((memory.described.number, u64::from(slot.number) * CACHE_SLOT))
    }

    /// Borrows what it has of the chunks, and adds where each lies.
    pub fn borrow(
        &mut self,
        chunks: impl Iterator<Item = ContentHash>,
        priority: Priority,
        found: &mut HashMap<ContentHash, At>,
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
        self.memories.len() as u64 * self.memory_bytes
    }

    pub fn shown(&self) -> serde_json::Value {
        serde_json::json!({
            "limit_bytes": self.limit,
            "held_bytes": self.held_bytes(),
            "used_bytes": self.index.taken() * CACHE_SLOT,
        })
    }
}
