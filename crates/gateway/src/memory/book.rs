//! Who has how much of each GPU's memory, and who waits for some. It does nothing by itself; [`super::step`] says who is next.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::share::{Excess, Shares, Tally};

/// A service by its number, and an instance of it by its own.
pub type Key = (u64, u32);

#[derive(Default)]
pub struct Book {
    pub(super) gpus: BTreeMap<String, Gpu>,
    pub shares: Shares,
}

#[derive(Default)]
pub(super) struct Gpu {
    /// Every instance that there is, whatever it has.
    pub held: BTreeMap<Key, Held>,
    pub waiting: VecDeque<Waiting>,
}

pub(super) struct Held {
    pub bytes: u64,
    /// How much of it is about to be free.
    pub leaving: Option<u64>,
    /// It is to end, for another instance of its tenant's; it may have to sleep first.
    pub ending: bool,
}

pub(super) struct Waiting {
    pub key: Key,
    /// What it is to have in all.
    pub bytes: u64,
    pub full: Option<Full>,
}

/// Its GPU was full when it was to be brought up.
pub(super) struct Full {
    /// What was missing, and how much was given back since; at least a byte.
    pub missing: u64,
    pub given_back: u64,
    pub since: Instant,
    pub why: String,
}

impl Book {
    /// What an instance is known to have.
    pub fn hold(&mut self, gpu: &str, key: Key, bytes: u64) {
        let gpu = self.gpus.entry(gpu.to_string()).or_default();
        let held = gpu.held.entry(key).or_insert(Held::of(0));
        let gone = held.bytes.saturating_sub(bytes);
        *held = Held { ending: held.ending, ..Held::of(bytes) };
        gpu.given_back(gone);
    }

    /// What was measured of an instance, unless it is about to have less.
    pub fn measured(&mut self, key: Key, bytes: u64) {
        let mut held = self.gpus.values_mut().filter_map(|gpu| gpu.held.get_mut(&key));
        if let Some(held) = held.next().filter(|held| held.leaving.is_none()) {
            held.bytes = bytes;
        }
    }

    /// It was to go down, and does not.
    pub fn stays(&mut self, key: Key) {
        for held in self.gpus.values_mut().filter_map(|gpu| gpu.held.get_mut(&key)) {
            (held.leaving, held.ending) = (None, false);
        }
    }

    /// It has nothing any more, and wants nothing.
    pub fn gone(&mut self, key: Key) {
        for gpu in self.gpus.values_mut() {
            gpu.waiting.retain(|waiting| waiting.key != key);
            if let Some(held) = gpu.held.remove(&key) {
                gpu.given_back(held.bytes);
            }
        }
        self.gpus.retain(|_, gpu| !gpu.held.is_empty() || !gpu.waiting.is_empty());
    }

    /// It wants nothing more than it has.
    pub fn withdraw(&mut self, key: Key) {
        self.gpus.values_mut().for_each(|gpu| gpu.waiting.retain(|waiting| waiting.key != key));
    }

    /// An instance waits until it can have so many bytes in all.
    pub fn claim(&mut self, gpu: &str, key: Key, bytes: u64) {
        let gpu = self.gpus.entry(gpu.to_string()).or_default();
        if let Some(held) = gpu.held.get_mut(&key) {
            held.ending = false;
        }
        gpu.waiting.push_back(Waiting { key, bytes, full: None });
    }

    /// An instance had been granted its bytes and found the GPU full, which lacked `missing` (0: nobody knows how many): it
    /// has `left`, and is the first to have room.
    pub fn found_full(
        &mut self,
        gpu: &str,
        key: Key,
        (bytes, left): (u64, u64),
        (missing, why): (u64, String),
        now: Instant,
    ) {
        let gpu = self.gpus.entry(gpu.to_string()).or_default();
        match left {
            0 => drop(gpu.held.remove(&key)),
            left => drop(gpu.held.insert(key, Held::of(left))),
        }
        let full = Some(Full { missing: missing.max(1), given_back: 0, since: now, why });
        gpu.waiting.push_front(Waiting { key, bytes, full });
    }

    /// Whether somebody waits, or has more than it may.
    pub fn is_short(&self, limit: Option<u64>) -> bool {
        let is_short = |gpu: &Gpu| !gpu.waiting.is_empty() || limit.is_some_and(|limit| gpu.used() > limit);
        let has_too_much = |tenant| !self.excess_of(tenant, Excess::default()).is_none();
        self.gpus.values().any(is_short) || self.shares.all().any(|(tenant, _)| has_too_much(tenant))
    }

    /// Why an instance waits.
    pub fn why(&self, key: Key, limit: Option<u64>) -> Option<String> {
        let find = |gpu: &'_ Gpu| gpu.waiting.iter().position(|waiting| waiting.key == key);
        let (gpu, at) = self.gpus.values().find_map(|gpu| Some((gpu, find(gpu)?)))?;
        let waiting = &gpu.waiting[at];
        if let Some(full) = &waiting.full {
            return Some(full.why.clone());
        }
        let needed = waiting.bytes >> 20;
        if let Some((tenant, share)) = self.shares.of(key.0) {
            let tally = self.tally(tenant);
            let excess = share.excess(&tally, self.more(gpu, waiting));
            if excess.instances > 0 {
                let most = share.instances.unwrap_or_default();
                return Some(format!(
                    "services of the tenant {tenant:?} have {} instances, and may have {most}",
                    tally.instances
                ));
            }
            if excess.bytes > 0 {
                let (used, most) = (tally.bytes >> 20, share.bytes.unwrap_or_default() >> 20);
                return Some(format!(
                    "it needs {needed} MB of GPU memory, and services of the tenant {tenant:?} have {used} of the {most} MB that \
                     they may have"
                ));
            }
        }
        let (used, most) = (gpu.used() >> 20, limit.unwrap_or_default() >> 20);
        Some(format!(
            "it needs {needed} MB of GPU memory, and services have {used} of the {most} MB that they may have"
        ))
    }

    pub fn bytes(&self, key: Key) -> Option<u64> {
        self.gpus.values().find_map(|gpu| gpu.held.get(&key)).map(|held| held.bytes)
    }

    /// Each GPU with what is held of it.
    pub fn used(&self) -> BTreeMap<String, u64> {
        self.gpus.iter().map(|(name, gpu)| (name.clone(), gpu.used())).collect()
    }

    /// What a tenant's services have.
    pub fn tally(&self, tenant: &str) -> Tally {
        let mut tally = Tally::default();
        let all = self.gpus.values().flat_map(|gpu| &gpu.held);
        for (_, held) in all.filter(|(key, _)| self.shares.tenant_of(key.0) == Some(tenant)) {
            tally.bytes += held.bytes;
            tally.instances += 1;
            tally.leaving_bytes += held.leaving.unwrap_or(0);
            tally.leaving += usize::from(held.ending);
        }
        tally
    }

    /// What a tenant would have beyond its share with so much more.
    pub(super) fn excess_of(&self, tenant: &str, more: Excess) -> Excess {
        let share = self.shares.all().find(|(name, _)| *name == tenant).map(|(_, share)| share);
        share.map(|share| share.excess(&self.tally(tenant), more)).unwrap_or_default()
    }

    /// What one that waits is to have beside what it has.
    pub(super) fn more(&self, gpu: &Gpu, waiting: &Waiting) -> Excess {
        let own = gpu.held.get(&waiting.key);
        let bytes = waiting.bytes.saturating_sub(own.map_or(0, |held| held.bytes));
        Excess { bytes, instances: usize::from(own.is_none()) }
    }
}

impl Held {
    pub fn of(bytes: u64) -> Held {
        Held { bytes, leaving: None, ending: false }
    }
}

impl Gpu {
    pub fn used(&self) -> u64 {
        self.held.values().map(|held| held.bytes).sum()
    }

    pub fn leaving(&self) -> u64 {
        self.held.values().filter_map(|held| held.leaving).sum()
    }

    fn given_back(&mut self, bytes: u64) {
        for full in self.waiting.iter_mut().filter_map(|waiting| waiting.full.as_mut()) {
            full.given_back += bytes;
        }
    }
}
