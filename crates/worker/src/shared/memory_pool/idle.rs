//! Which memory a pool has, where it is still mapped, and what of it goes or is missing.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use rekindle_device::Memory;

use crate::pressure::Pressure;

/// A user of the pool, and where it has memory mapped.
pub(super) type Place = (u64, u64);

#[derive(Default)]
pub(super) struct IdleMemory {
    /// By bytes.
    idle: BTreeMap<u64, Vec<Memory>>,
    bytes: u64,
    /// Where memory that was passed on is still mapped, by who did that and where.
    mapped: BTreeMap<Place, Mapping>,
    /// Who is told how much there is.
    pub told: Option<Arc<Pressure>>,
}

#[derive(Clone, Copy)]
pub(super) struct Mapping {
    pub bytes: u64,
    pub memory: Memory,
}

/// Memory that is to go to the GPU, and its bytes.
pub(super) type Surplus = Vec<(u64, Memory)>;

impl IdleMemory {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn put(&mut self, bytes: u64, memory: Memory) {
        self.idle.entry(bytes).or_default().push(memory);
        self.set_bytes(self.bytes + bytes);
    }

    /// As [`IdleMemory::put`], of memory that is mapped there.
    pub fn put_mapped(&mut self, by: Place, mapping: Mapping) {
        self.mapped.insert(by, mapping);
        self.put(mapping.bytes, mapping.memory);
    }

    /// Memory of exactly so many bytes: some that is mapped nowhere, if there is, since who has it mapped may want it back.
    pub fn take(&mut self, bytes: u64) -> Option<Memory> {
        let mapped = self.mapped_memory();
        self.take_where(bytes, |memory| !mapped.contains(&memory))
            .or_else(|| self.take_where(bytes, |_| true))
    }

    /// Takes back what is mapped there; false if somebody has taken it.
    pub fn take_back(&mut self, by: Place, mapping: Mapping) -> bool {
        let is_there = self.take_where(mapping.bytes, |idle| idle == mapping.memory).is_some();
        if is_there {
            self.mapped.remove(&by);
        }
        is_there
    }

    fn take_where(&mut self, bytes: u64, is_wanted: impl Fn(Memory) -> bool) -> Option<Memory> {
        let idle = self.idle.get_mut(&bytes)?;
        let at = idle.iter().rposition(|memory| is_wanted(*memory))?;
        let taken = idle.swap_remove(at);
        if idle.is_empty() {
            self.idle.remove(&bytes);
        }
        self.set_bytes(self.bytes - bytes);
        Some(taken)
    }

    fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
        if let Some(told) = &self.told {
            told.tell(bytes);
        }
    }

    pub fn is_mapped(&self, by: Place) -> bool {
        self.mapped.contains_key(&by)
    }

    pub fn forget_mapping(&mut self, by: Place) {
        self.mapped.remove(&by);
    }

    /// What was passed on and is still mapped.
    pub fn mappings(&self) -> Vec<(Place, Mapping)> {
        self.mapped.iter().map(|(by, mapping)| (*by, *mapping)).collect()
    }

    fn mapped_memory(&self) -> HashSet<Memory> {
        self.mapped.values().map(|mapping| mapping.memory).collect()
    }

    /// Takes all out, mapped or not.
    pub fn take_all(&mut self) -> Surplus {
        let of_size = |(bytes, all): (u64, Vec<Memory>)| all.into_iter().map(move |memory| (bytes, memory));
        let all = std::mem::take(&mut self.idle).into_iter().flat_map(of_size).collect();
        self.set_bytes(0);
        all
    }

    /// Takes memory out that is mapped nowhere until no more than `keep` bytes are left: first what nobody wants.
    pub fn surplus(&mut self, keep: u64, wanted: &BTreeMap<u64, usize>) -> Surplus {
        let (mut surplus, mapped) = (Vec::new(), self.mapped_memory());
        for spares_wanted in [true, false] {
            let sizes: Vec<u64> = self.idle.keys().rev().copied().collect();
            for bytes in sizes {
                let spared = if spares_wanted { wanted.get(&bytes).copied().unwrap_or(0) } else { 0 };
                while self.bytes > keep && self.idle.get(&bytes).is_some_and(|idle| idle.len() > spared) {
                    let unmapped = self.take_where(bytes, |memory| !mapped.contains(&memory));
                    let Some(memory) = unmapped else { break };
                    surplus.push((bytes, memory));
                }
            }
        }
        surplus
    }

    /// Bytes of each piece that is to be made, so that what is wanted is there, and no more than `most` bytes.
    pub fn missing(&self, most: u64, wanted: &BTreeMap<u64, usize>) -> Vec<u64> {
        let (mut missing, mut held) = (Vec::new(), self.bytes);
        for (bytes, count) in wanted {
            let there = self.idle.get(bytes).map_or(0, Vec::len);
            for _ in there..*count {
                if held + bytes <= most {
                    held += bytes;
                    missing.push(*bytes);
                }
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_can_be_taken_and_is_not_given_to_the_gpu() {
        let mut idle = IdleMemory::default();
        idle.put(4, Memory(1));
        idle.put_mapped((7, 4096), Mapping { bytes: 4, memory: Memory(2) });
        idle.put(8, Memory(3));
        assert_eq!(idle.bytes(), 16);
        // What is wanted goes last.
        assert_eq!(idle.surplus(12, &BTreeMap::from([(8, 1)])), [(4, Memory(1))]);
        assert_eq!(idle.surplus(0, &BTreeMap::new()), [(8, Memory(3))]);
        assert_eq!((idle.take(4), idle.take(4)), (Some(Memory(2)), None));
        assert_eq!(idle.bytes(), 0);
    }

    #[test]
    fn what_is_missing_is_made_up_to_the_size() {
        let mut idle = IdleMemory::default();
        idle.put(4, Memory(1));
        let wanted = BTreeMap::from([(4, 2), (16, 1), (32, 1)]);
        assert_eq!(idle.missing(24, &wanted), [4, 16]);
        assert_eq!(idle.missing(0, &wanted), [0; 0]);
    }
}
