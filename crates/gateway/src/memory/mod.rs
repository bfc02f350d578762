//! GPU memory that the instances of all services have together.
//!
//! ```text
//!  service ── claim ─▶ book ── room ──────────────────────────────▶ granted: it starts, or wakes
//!                       │ └── none: waits ◀── given back ─┐
//!                       └── demote ─▶ the least valuable idle instance: running ─▶ asleep, level by level ─▶ ended
//! ```
//!
//! An instance is brought up once it was granted what it needs: of its tenant's share, and of a limit, if there is one for
//! each GPU. One that finds its GPU full all the same waits again, until others have gone for it. Who goes is who saves the fewest requests a second for
//! the bytes that it holds; none does that has a request. Nothing is called with the book locked.

mod holding;
mod ledger;
#[cfg(test)]
mod settling;
mod share;
mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

pub use holding::{Datum, Holding};
use ledger::{Key, MemoryLedger};
use rekindle_protocol::tenant::Quota;
use step::{Idle, Step};

use crate::plan::{MemoryNeed, Source};
use crate::policy::{IdleInstance, Room};
use crate::service::Service;

/// How often is looked how much instances have, and whether one that found its GPU full is to try again.
const EVERY: Duration = Duration::from_secs(1);

pub struct Memory {
    /// Bytes of each GPU.
    limit: Option<u64>,
    state: Mutex<State>,
    /// The last service's number.
    last: AtomicU64,
    /// Somebody waits, or there is more than may be.
    short: AtomicBool,
    /// Somebody settles just now, and is to do so once more.
    settling: AtomicBool,
    again: AtomicBool,
}

#[derive(Default)]
struct State {
    ledger: MemoryLedger,
    services: BTreeMap<u64, Weak<Service>>,
    /// Bytes of each GPU that those would give back whom nobody needs, when that was looked at last.
    spare: BTreeMap<String, u64>,
    /// The most that instances of an image had, by its id, and the data that they had.
    most: BTreeMap<String, Holding>,
}

impl Memory {
    pub fn new(limit: Option<u64>) -> Memory {
        let (settling, again) = (AtomicBool::new(false), AtomicBool::new(false));
        let (last, short) = (AtomicU64::new(0), AtomicBool::new(false));
        Memory { limit, state: Mutex::default(), last, short, settling, again }
    }

    /// Bytes of each GPU that all instances together may have.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Bytes of each GPU that instances have.
    pub fn used(&self) -> BTreeMap<String, u64> {
        self.lock().ledger.used()
    }

    /// A number for a service that there is from now on.
    pub(crate) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn join(&self, service: &Arc<Service>) {
        let mut state = self.lock();
        state.services.insert(service.number, Arc::downgrade(service));
        if let Some(tenant) = service.tenant() {
            state.ledger.shares.join(service.number, &tenant.name);
        }
    }

    pub(crate) fn leave(&self, service: u64) {
        let mut state = self.lock();
        state.services.remove(&service);
        state.ledger.shares.leave(service);
    }

    /// Has a tenant's services have so much together from now on.
    pub(crate) fn share(&self, tenant: &str, quota: Quota) {
        self.change(|state, _| state.ledger.shares.set(tenant, quota.into()));
    }

    /// How many instances a tenant's services have, and the bytes of those.
    pub fn used_by(&self, tenant: &str) -> (usize, u64) {
        let tally = self.lock().ledger.tally(tenant);
        (tally.instances, tally.bytes)
    }

    /// An instance is to have what it needs, and waits until it does.
    pub(crate) fn claim(&self, key: Key, source: &Source) {
        self.change(|state, limit| {
            let holding = state.claimed(key, source, limit);
            state.ledger.claim(&source.need.gpu, key, holding);
        });
    }

    /// An instance wants elsewhere what it has claimed, or was granted, on another GPU.
    pub(crate) fn moves(&self, key: Key, source: &Source) {
        self.change(|state, limit| {
            state.ledger.gone(key);
            let holding = state.claimed(key, source, limit);
            state.ledger.claim(&source.need.gpu, key, holding);
        });
    }

    /// Whether a further instance of a service would have what it needs at once, and nobody has to go for it.
    pub(crate) fn has_room(&self, service: u64, source: &Source) -> bool {
        let state = self.lock();
        let key = (service, u32::MAX);
        state.ledger.has_room(&source.need.gpu, key, state.claimed(key, source, self.limit), self.limit)
    }

    /// What a further instance of a service finds on its GPU.
    pub(crate) fn room(&self, service: u64, source: &Source) -> Room {
        self.room_to_wake((service, u32::MAX), source)
    }

    /// What an instance finds that sleeps.
    pub(crate) fn room_to_wake(&self, key: Key, source: &Source) -> Room {
        let (state, gpu) = (self.lock(), &source.need.gpu);
        let holding = state.claimed(key, source, self.limit);
        if state.ledger.has_room(gpu, key, holding.clone(), self.limit) {
            return Room::AtOnce;
        }
        let spare = state.spare.get(gpu).copied().unwrap_or(0);
        match state.ledger.fits(gpu, key, holding, self.limit.map(|limit| limit + spare)) {
            true => Room::OnceOthersGo,
            false => Room::Never,
        }
    }

    /// An instance was granted what it needs, and its GPU was full.
    pub(crate) fn found_full(
        &self,
        key: Key,
        source: &Source,
        left: Holding,
        (missing, why): (u64, String),
        now: Instant,
    ) {
        self.change(|state, limit| {
            let holdings = (state.claimed(key, source, limit), left);
            state.ledger.found_full(&source.need.gpu, key, holdings, (missing, why), now);
        });
    }

    /// An instance has so much, whatever it was granted.
    pub(crate) fn hold(&self, key: Key, gpu: &str, holding: Holding) {
        self.change(|state, _| state.ledger.hold(gpu, key, holding));
    }

    /// An instance that runs was measured. Data that it has not asked for yet it may ask for at any time: they stay its own.
    pub(crate) fn measured(&self, key: Key, source: &Source, mut holding: Holding) {
        source.need.data.iter().for_each(|datum| holding.add(datum.clone()));
        self.change(|state, _| {
            let most = state.most.entry(source.id.clone()).or_default();
            most.own = most.own.max(holding.own);
            holding.data.iter().for_each(|datum| most.add(datum.to_come()));
            state.ledger.measured(key, holding);
        });
    }

    pub(crate) fn stays(&self, key: Key) {
        self.change(|state, _| state.ledger.stays(key));
    }

    pub(crate) fn gone(&self, key: Key) {
        self.change(|state, _| state.ledger.gone(key));
    }

    pub(crate) fn withdraw(&self, key: Key) {
        self.change(|state, _| state.ledger.withdraw(key));
    }

    /// What an instance has, bytes. What several have counts once, for the first of them.
    pub(crate) fn bytes(&self, key: Key) -> u64 {
        self.lock().ledger.bytes(key).unwrap_or(0)
    }

    /// Why an instance waits, if it does.
    pub(crate) fn why(&self, key: Key) -> Option<String> {
        self.lock().ledger.why(key, self.limit)
    }

    /// Looks how much instances have, where there is a limit to keep to, and has done what is due.
    fn refresh(&self) {
        if self.is_bounded() {
            let services = self.lock().services.clone();
            services.values().filter_map(Weak::upgrade).for_each(|service| service.measure());
        }
        self.look();
    }

    /// Whether anybody has less memory than there is.
    pub fn is_bounded(&self) -> bool {
        self.limit.is_some() || self.lock().ledger.shares.bounds_bytes()
    }

    /// Something has happened that others may have waited for.
    pub(crate) fn look(&self) {
        if self.short.load(Ordering::Acquire) {
            self.settle();
        }
    }

    fn change(&self, event: impl FnOnce(&mut State, Option<u64>)) {
        let mut state = self.lock();
        event(&mut state, self.limit);
        self.short.store(state.ledger.is_short(self.limit), Ordering::Release);
        drop(state);
        self.look();
    }

    /// Has all done that is due: by whoever does so already, if somebody does.
    fn settle(&self) {
        self.again.store(true, Ordering::SeqCst);
        while self.again.load(Ordering::SeqCst) && !self.settling.swap(true, Ordering::SeqCst) {
            while self.again.swap(false, Ordering::SeqCst) {
                self.settle_once();
            }
            self.settling.store(false, Ordering::SeqCst);
        }
    }

    fn settle_once(&self) {
        let now = Instant::now();
        self.give_out(&self.idle(now), now);
    }

    /// Those of all services that nobody needs.
    fn idle(&self, now: Instant) -> Vec<(u64, IdleInstance)> {
        let services = self.lock().services.clone();
        services
            .iter()
            .filter_map(|(number, service)| Some((*number, service.upgrade()?)))
            .flat_map(|(number, service)| service.idle(now).into_iter().map(move |one| (number, one)))
            .collect()
    }

    /// Has who waits be told of its memory, and has those go that were idle a moment ago, as far as that takes.
    fn give_out(&self, idle: &[(u64, IdleInstance)], now: Instant) {
        let steps = {
            let mut state = self.lock();
            let of = |(service, one): &(u64, IdleInstance)| {
                let key = (*service, one.instance);
                let held = state.ledger.frees(key);
                // At level `gpu` a program that sleeps gives its context back, and its memory once it ends.
                let frees = if one.keeps_memory { one.context.clamp(1, held.max(1)) } else { held };
                Idle { key, rate: one.rate, frees, ends: one.ends, since: one.since }
            };
            let idle: Vec<Idle> = idle.iter().map(of).collect();
            state.spare = state.ledger.spare(&idle);
            let steps = state.ledger.step(self.limit, &idle, now);
            self.short.store(state.ledger.is_short(self.limit), Ordering::Release);
            steps
        };
        for step in steps {
            let (Step::Grant(key) | Step::Demote(key) | Step::Dismiss(key) | Step::Fail(key, _)) = step;
            // One that came after the look above may be among them.
            let service = self.lock().services.get(&key.0).and_then(Weak::upgrade);
            let Some(service) = service else { continue };
            match step {
                Step::Grant(_) => service.granted(key.1),
                Step::Fail(_, why) => service.not_granted(key.1, why),
                Step::Demote(_) | Step::Dismiss(_) => {
                    let goes = match step {
                        Step::Dismiss(_) => service.dismiss(key.1),
                        _ => service.demote(key.1),
                    };
                    if !goes {
                        self.stays(key);
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks again and again, for as long as there are services.
pub async fn keep_looking(memory: Weak<Memory>) {
    loop {
        sleep(EVERY).await;
        let Some(memory) = memory.upgrade() else { return };
        // One that looks for longer has the next one wait.
        let _ = spawn_blocking(move || memory.refresh()).await;
    }
}

impl State {
    /// What an instance is to be granted: what others of the image had, or else what the image says. One that grew beyond the
    /// limit may have all of it.
    fn claimed(&self, key: Key, source: &Source, limit: Option<u64>) -> Holding {
        let share = self.ledger.shares.of(key.0).and_then(|(_, share)| share.bytes);
        let limit = limit.into_iter().chain(share).min();
        let MemoryNeed { program, context, .. } = source.need;
        let most = self.most.get(&source.id);
        let said = program + context;
        let own = most.map_or(said, |most| program.max(most.own));
        let mut holding = Holding { own, data: source.need.data.clone() };
        most.into_iter().flat_map(|most| &most.data).for_each(|datum| holding.add(datum.clone()));
        let data = holding.alone() - own;
        if let Some(limit) = limit.filter(|limit| program + data <= *limit) {
            holding.own = own.min(limit - data);
        }
        holding
    }
}
