//! Who has how much of each GPU's memory, and who waits for some. It does nothing by itself; [`super::step`] says who is next.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::holding::{Holding, together};
use super::share::{Excess, TenantLimits, TenantUsage};
use super::step::Idle;

/// A service by its number, and an instance of it by its own.
pub type Key = (u64, u32);

#[derive(Default)]
pub struct MemoryLedger {
    pub(super) gpus: BTreeMap<String, Gpu>,
    pub shares: TenantLimits,
}

#[derive(Default)]
pub(super) struct Gpu {
    /// Every instance that there is, whatever it has.
    pub held: BTreeMap<Key, InstanceMemory>,
    pub waiting: VecDeque<Waiting>,
}

pub(super) struct InstanceMemory {
    pub holding: Holding,
    /// How much of it is about to be free.
    pub leaving: Option<u64>,
    /// It is to end, for another instance of its tenant's; it may have to sleep first.
    pub ending: bool,
}

pub(super) struct Waiting {
    pub key: Key,
    /// What it is to have in all.
    pub holding: Holding,
    pub full: Option<GpuFull>,
    /// Since when others have to go for it.
    pub since: Option<Instant>,
}

/// Its GPU was full when it was to be brought up.
pub(super) struct GpuFull {
    /// What was missing, and how much was given back since; at least a byte.
    pub missing: u64,
    pub given_back: u64,
    pub since: Instant,
    pub why: String,
}

impl MemoryLedger {
    /// What an instance is known to have.
    pub fn hold(&mut self, gpu: &str, key: Key, holding: impl Into<Holding>) {
        let gpu = self.gpus.entry(gpu.to_string()).or_default();
        let before = gpu.used();
        let ending = gpu.held.get(&key).is_some_and(|held| held.ending);
        gpu.held.insert(key, InstanceMemory { ending, ..InstanceMemory::of(holding) });
        gpu.given_back(before.saturating_sub(gpu.used()));
    }

    /// What was measured of an instance, unless it is about to have less.
    pub fn measured(&mut self, key: Key, holding: impl Into<Holding>) {
        let mut held = self.gpus.values_mut().filter_map(|gpu| gpu.held.get_mut(&key));
        if let Some(held) = held.next().filter(|held| held.leaving.is_none()) {
            held.holding = holding.into();
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
            let before = gpu.used();
            if gpu.held.remove(&key).is_some() {
                gpu.given_back(before.saturating_sub(gpu.used()));
            }
        }
        self.gpus.retain(|_, gpu| !gpu.held.is_empty() || !gpu.waiting.is_empty());
    }

    /// It wants nothing more than it has.
    pub fn withdraw(&mut self, key: Key) {
        self.gpus.values_mut().for_each(|gpu| gpu.waiting.retain(|waiting| waiting.key != key));
    }

    /// An instance waits until it can have so much in all.
    pub fn claim(&mut self, gpu: &str, key: Key, holding: impl Into<Holding>) {
        let gpu = self.gpus.entry(gpu.to_string()).or_default();
        if let Some(held) = gpu.held.get_mut(&key) {
            held.ending = false;
        }
        gpu.waiting.push_back(Waiting { key, holding: holding.into(), full: None, since: None });
    }

    /// An instance had been granted its memory and found the GPU full, which lacked `missing` (0: nobody knows how many): it
    /// has `left`, and is the first to have room.
    pub fn found_full(
        &mut self,
        gpu: &str,
        key: Key,
        (holding, left): (impl Into<Holding>, impl Into<Holding>),
        (missing, why): (u64, String),
        now: Instant,
    ) {
        let gpu = self.gpus.entry(gpu.to_string()).or_default();
        let left = left.into();
        match left.is_none() {
            true => drop(gpu.held.remove(&key)),
            false => drop(gpu.held.insert(key, InstanceMemory::of(left))),
        }
        let full = Some(GpuFull { missing: missing.max(1), given_back: 0, since: now, why });
        gpu.waiting.push_front(Waiting { key, holding: holding.into(), full, since: None });
    }

    /// Whether somebody waits, or has more than it may.
    pub fn is_short(&self, limit: Option<u64>) -> bool {
        let is_short = |gpu: &Gpu| !gpu.waiting.is_empty() || limit.is_some_and(|limit| gpu.used() > limit);
        let has_too_much = |tenant| !self.excess_of(tenant, Excess::default()).is_none();
        self.gpus.values().any(is_short) || self.shares.all().any(|(tenant, _)| has_too_much(tenant))
    }

    /// Whether an instance would be granted this at once, or is about to be.
    pub fn has_room(&self, gpu: &str, key: Key, holding: Holding, limit: Option<u64>) -> bool {
        let is_next = |gpu: &Gpu| gpu.waiting.front().is_none_or(|first| first.key == key);
        self.gpus.get(gpu).is_none_or(is_next) && self.fits(gpu, key, holding, limit)
    }

    /// Whether an instance would be granted this if nobody else waited.
    pub fn fits(&self, gpu: &str, key: Key, holding: Holding, limit: Option<u64>) -> bool {
        let empty = Gpu::default();
        let gpu = self.gpus.get(gpu).unwrap_or(&empty);
        let more = self.more(gpu, &Waiting { key, holding, full: None, since: None });
        let share = self.shares.of(key.0).map(|(tenant, _)| tenant);
        limit.is_none_or(|limit| gpu.used() + more.bytes <= limit)
            && share.is_none_or(|tenant| self.excess_of(tenant, more).is_none())
    }

    /// Why an instance waits.
    pub fn why(&self, key: Key, limit: Option<u64>) -> Option<String> {
        let find = |gpu: &'_ Gpu| gpu.waiting.iter().position(|waiting| waiting.key == key);
        let (gpu, at) = self.gpus.values().find_map(|gpu| Some((gpu, find(gpu)?)))?;
        let waiting = &gpu.waiting[at];
        if let Some(full) = &waiting.full {
            return Some(full.why.clone());
        }
        let needed = waiting.holding.alone() >> 20;
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
        let used = gpu.used() >> 20;
        Some(match limit.map(|limit| limit >> 20) {
            Some(most) => format!(
                "it needs {needed} MB of GPU memory, and services have {used} of the {most} MB that they may have"
            ),
            None => format!("it needs {needed} MB of GPU memory, and others came before it"),
        })
    }

    /// What an instance has, and those before it do not have already: all together have the sum of these.
    pub fn bytes(&self, key: Key) -> Option<u64> {
        let gpu = self.gpus.values().find(|gpu| gpu.held.contains_key(&key))?;
        let before = || gpu.held.range(..key).map(|(_, held)| &held.holding);
        let own = &gpu.held.get(&key)?.holding;
        Some(match own.data.is_empty() {
            true => own.own,
            false => together(before().chain([own])) - together(before()),
        })
    }

    /// How much there would be without an instance that there is with it.
    pub fn frees(&self, key: Key) -> u64 {
        let Some(gpu) = self.gpus.values().find(|gpu| gpu.held.contains_key(&key)) else { return 0 };
        let others = gpu.held.iter().filter(|(other, _)| **other != key).map(|(_, held)| &held.holding);
        gpu.used().saturating_sub(together(others))
    }

    /// Bytes of each GPU that these would give back, or do already.
    pub fn spare(&self, idle: &[Idle]) -> BTreeMap<String, u64> {
        let of = |gpu: &Gpu| {
            let stay = |key: &Key| gpu.held.get(key).is_some_and(|held| held.leaving.is_none());
            let going = idle.iter().filter(|one| stay(&one.key)).map(|one| one.frees).sum::<u64>();
            going + gpu.leaving()
        };
        self.gpus.iter().map(|(name, gpu)| (name.clone(), of(gpu))).collect()
    }

    /// Each GPU with what is held of it.
    pub fn used(&self) -> BTreeMap<String, u64> {
        self.gpus.iter().map(|(name, gpu)| (name.clone(), gpu.used())).collect()
    }

    /// What a tenant's services have.
    pub fn tally(&self, tenant: &str) -> TenantUsage {
        let mut tally = TenantUsage::default();
        for gpu in self.gpus.values() {
            let its = |(key, _): &(&Key, &InstanceMemory)| self.shares.tenant_of(key.0) == Some(tenant);
            let all = || gpu.held.iter().filter(its).map(|(_, held)| held);
            tally.bytes += together(all().map(|held| &held.holding));
            for held in all() {
                tally.instances += 1;
                tally.leaving_bytes += held.leaving.unwrap_or(0);
                tally.leaving += usize::from(held.ending);
            }
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
        let others = gpu.held.iter().filter(|(key, _)| **key != waiting.key).map(|(_, held)| &held.holding);
        let then = together(others.chain([&waiting.holding]));
        let is_new = !gpu.held.contains_key(&waiting.key);
        Excess { bytes: then.saturating_sub(gpu.used()), instances: usize::from(is_new) }
    }
}

impl InstanceMemory {
    pub fn of(holding: impl Into<Holding>) -> InstanceMemory {
        InstanceMemory { holding: holding.into(), leaving: None, ending: false }
    }
}

impl Gpu {
    pub fn used(&self) -> u64 {
        together(self.held.values().map(|held| &held.holding))
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
