//! Who is to have room next, and who is to go for it.
//!
//! ```text
//!  the first that waits ─▶ its tenant's share ─▶ the GPU ─▶ granted
//!                            └ none: the tenant's own     └ none: its tenant's go, then others; who came later waits
//!                              go; others do not wait
//!  behind one that waits for the GPU ─▶ small, and there is room as it is ─▶ granted
//! ```

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::ledger::{InstanceMemory, Key, MemoryLedger};
use super::share::Excess;

/// How long one that found its GPU full waits for others to give memory back before it tries again anyway.
const AGAIN: Duration = Duration::from_secs(1);
/// For so long one that waits is passed by those that need little.
const PASSED: Duration = Duration::from_secs(5);
/// Little is such a part of the limit.
const LITTLE: u64 = 10;

/// An instance that nobody needs just now.
#[derive(Clone, Debug)]
pub struct Idle {
    pub key: Key,
    /// Requests a second that find it.
    pub rate: f64,
    /// How much is free once it has gone one stage down.
    pub frees: u64,
    /// It sleeps, or cannot: one instance less there is only by its end.
    pub ends: bool,
    pub since: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is room for it, and it has that.
    Grant(Key),
    /// It is to go one stage down.
    Demote(Key),
    /// There is to be one instance less: it ends if it sleeps, and else sleeps before.
    Dismiss(Key),
    /// It cannot have room, and why.
    Fail(Key, String),
}

/// What becomes of one that waits.
enum WaitState {
    /// It does not wait any more.
    Over,
    /// Its tenant's share is used up; others may pass it.
    Passed,
    /// All behind it wait too.
    Waits,
}

/// What is looked at.
struct StepPlan<'a> {
    limit: Option<u64>,
    idle: &'a [Idle],
    now: Instant,
    steps: Vec<Step>,
    /// Tenants of whom somebody waits for memory of their share.
    short_of_memory: BTreeSet<String>,
    /// Tenants of whom somebody waits for an instance of their share.
    short_of_instances: BTreeSet<String>,
}

impl MemoryLedger {
    /// What is to be done next, with these that nobody needs.
    pub fn step(&mut self, limit: Option<u64>, idle: &[Idle], now: Instant) -> Vec<Step> {
        let (steps, none) = (Vec::new(), BTreeSet::new);
        let mut look =
            StepPlan { limit, idle, now, steps, short_of_memory: none(), short_of_instances: none() };
        let gpus: Vec<String> = self.gpus.keys().cloned().collect();
        for gpu in &gpus {
            let mut place = 0;
            loop {
                let waits = self.gpus.get(gpu).is_some_and(|gpu| place < gpu.waiting.len());
                match waits.then(|| self.try_admit(gpu, place, &mut look)) {
                    Some(WaitState::Over) => {}
                    Some(WaitState::Passed) => place += 1,
                    Some(WaitState::Waits) => {
                        self.let_pass(gpu, place, &mut look);
                        break;
                    }
                    None => {
                        self.keep_to_limit(gpu, &mut look);
                        break;
                    }
                }
            }
        }
        let tenants: Vec<String> = self.shares.all().map(|(tenant, _)| tenant.to_string()).collect();
        for tenant in tenants {
            self.make_room_in_share(&tenant, Excess::default(), &mut look);
        }
        look.steps
    }

    /// The one at `first` waits for others to go. Those behind it that need little do not wait for that, if there is room for
    /// them as it is, and if it has not waited for long.
    fn let_pass(&mut self, name: &str, first: usize, look: &mut StepPlan<'_>) {
        let Some(limit) = look.limit else { return };
        let since = self
            .gpus
            .get_mut(name)
            .and_then(|gpu| gpu.waiting.get_mut(first))
            .map(|waiting| *waiting.since.get_or_insert(look.now));
        if since.is_none_or(|since| look.now.saturating_duration_since(since) >= PASSED) {
            return;
        }
        let mut place = first + 1;
        while let Some(gpu) = self.gpus.get(name)
            && let Some(waiting) = gpu.waiting.get(place)
        {
            let more = self.more(gpu, waiting).bytes;
            let passes = waiting.full.is_none() && more <= limit / LITTLE && gpu.used() + more <= limit;
            if !passes || !matches!(self.try_admit(name, place, look), WaitState::Over) {
                place += 1;
            }
        }
    }

    fn try_admit(&mut self, name: &str, place: usize, look: &mut StepPlan<'_>) -> WaitState {
        let Some(gpu) = self.gpus.get(name) else { return WaitState::Waits };
        let waiting = &gpu.waiting[place];
        let (key, bytes, more) = (waiting.key, waiting.holding.alone(), self.more(gpu, waiting));
        if let Some((tenant, share)) = self.shares.of(key.0) {
            let tenant = tenant.to_string();
            if let Some(most) = share.bytes.filter(|most| bytes > *most) {
                let why = format!(
                    "it needs {} MB of GPU memory, and services of the tenant {tenant:?} may have {} MB \
                     (`rekindle tenant set {tenant} --memory`)",
                    bytes >> 20,
                    most >> 20
                );
                return self.fail(name, place, why, look);
            }
            let is_behind = look.short_of_memory.contains(&tenant)
                || (more.instances > 0 && look.short_of_instances.contains(&tenant));
            if is_behind || self.make_room_in_share(&tenant, more, look) {
                return WaitState::Passed;
            }
        }
        if let Some(limit) = look.limit.filter(|limit| bytes > *limit) {
            let why = format!(
                "it needs {} MB of GPU memory, and services may have {} MB (`--service-memory`)",
                bytes >> 20,
                limit >> 20
            );
            return self.fail(name, place, why, look);
        }
        self.turn_at_gpu(name, place, more.bytes, look)
    }

    /// One whose tenant has room for it.
    fn turn_at_gpu(&mut self, name: &str, place: usize, more: u64, look: &mut StepPlan<'_>) -> WaitState {
        let Some(gpu) = self.gpus.get_mut(name) else { return WaitState::Waits };
        let (used, leaving) = (gpu.used(), gpu.leaving());
        let waiting = &mut gpu.waiting[place];
        let key = waiting.key;
        waiting.full.take_if(|full| {
            full.given_back >= full.missing || (leaving == 0 && look.now - full.since >= AGAIN)
        });
        let missing = match &waiting.full {
            Some(full) => full.missing - full.given_back,
            None => look.limit.map_or(0, |limit| (used + more).saturating_sub(limit)),
        };
        if missing == 0 {
            let holding = std::mem::take(&mut waiting.holding);
            gpu.waiting.remove(place);
            gpu.held.insert(key, InstanceMemory::of(holding));
            look.steps.push(Step::Grant(key));
            return WaitState::Over;
        }
        if missing <= leaving || self.demote(name, missing - leaving, Some(key), look) || leaving > 0 {
            return WaitState::Waits;
        }
        // Nobody can go just now.
        let Some(gpu) = self.gpus.get_mut(name) else { return WaitState::Waits };
        let is_alone = gpu.held.iter().all(|(other, held)| *other == key || held.holding.is_none());
        let waiting = &mut gpu.waiting[place];
        match waiting.full.take() {
            Some(full) if full.given_back > 0 => WaitState::Over,
            Some(full) if is_alone => self.fail(name, place, full.why, look),
            other => {
                waiting.full = other;
                WaitState::Waits
            }
        }
    }

    fn fail(&mut self, gpu: &str, place: usize, why: String, look: &mut StepPlan<'_>) -> WaitState {
        let waiting = self.gpus.get_mut(gpu).and_then(|gpu| gpu.waiting.remove(place));
        look.steps.extend(waiting.map(|waiting| Step::Fail(waiting.key, why)));
        WaitState::Over
    }

    /// Nobody waits for the GPU's memory; it may be that those that have it have grown.
    fn keep_to_limit(&mut self, name: &str, look: &mut StepPlan<'_>) {
        let Some((limit, gpu)) = look.limit.zip(self.gpus.get(name)) else { return };
        let over = gpu.used().saturating_sub(limit).saturating_sub(gpu.leaving());
        self.demote(name, over, None, look);
    }

    /// Has those of a tenant go that are beyond its share with so much more; whether any are, which it notes.
    fn make_room_in_share(&mut self, tenant: &str, more: Excess, look: &mut StepPlan<'_>) -> bool {
        let excess = self.excess_of(tenant, more);
        if excess.bytes > 0 {
            look.short_of_memory.insert(tenant.to_string());
        }
        if excess.instances > 0 && more.instances > 0 {
            look.short_of_instances.insert(tenant.to_string());
        }
        let mut missing = excess.without_leaving(&self.tally(tenant));
        let mut own: Vec<&Idle> =
            look.idle.iter().filter(|one| self.shares.tenant_of(one.key.0) == Some(tenant)).collect();
        own.sort_by(|a, b| a.value().total_cmp(&b.value()).then(a.since.cmp(&b.since)));
        for one in &own {
            if missing.bytes > 0 && one.frees > 0 && self.leaves(None, one, Step::Demote, &mut look.steps) {
                missing.bytes = missing.bytes.saturating_sub(one.frees);
            }
        }
        if excess.instances == 0 && !look.short_of_instances.contains(tenant) {
            self.let_stay(tenant);
            return !excess.is_none();
        }
        // Those that sleep end at once; of the others the one goes that is asked for least, and sleeps before.
        own.sort_by(|a, b| b.ends.cmp(&a.ends).then(a.rate.total_cmp(&b.rate)).then(a.since.cmp(&b.since)));
        for one in &own {
            let is_ending = self.held(one.key).is_some_and(|held| held.ending);
            let wanted = is_ending || missing.instances > 0;
            if wanted && self.leaves(None, one, Step::Dismiss, &mut look.steps) {
                missing.instances -= usize::from(!is_ending);
                self.held(one.key).into_iter().for_each(|held| held.ending = true);
            }
        }
        !excess.is_none()
    }

    /// None of a tenant's is to end for another one.
    fn let_stay(&mut self, tenant: &str) {
        for (key, held) in self.gpus.values_mut().flat_map(|gpu| &mut gpu.held) {
            held.ending &= self.shares.tenant_of(key.0) != Some(tenant);
        }
    }

    fn held(&mut self, key: Key) -> Option<&mut InstanceMemory> {
        self.gpus.values_mut().find_map(|gpu| gpu.held.get_mut(&key))
    }

    /// Has those go that save the fewest requests a second for what they hold, first of the tenant for one of which it is,
    /// until so much is about to be free; false if nobody can.
    fn demote(&mut self, gpu: &str, mut missing: u64, who: Option<Key>, look: &mut StepPlan<'_>) -> bool {
        let tenant = who.and_then(|key| self.shares.tenant_of(key.0)).map(str::to_string);
        let is_foreign =
            |one: &Idle| tenant.is_some() && self.shares.tenant_of(one.key.0) != tenant.as_deref();
        let mut idle: Vec<(bool, &Idle)> =
            look.idle.iter().filter(|one| one.frees > 0).map(|one| (is_foreign(one), one)).collect();
        idle.sort_by(|(a_foreign, a), (b_foreign, b)| {
            a_foreign.cmp(b_foreign).then(a.value().total_cmp(&b.value())).then(a.since.cmp(&b.since))
        });
        let mut found = false;
        for (_, one) in idle {
            if missing == 0 {
                break;
            }
            if self.leaves(Some(gpu), one, Step::Demote, &mut look.steps) {
                missing = missing.saturating_sub(one.frees);
                found = true;
            }
        }
        found
    }

    /// Has an instance go by such a step, if it is of this GPU and not on its way.
    fn leaves(
        &mut self,
        gpu: Option<&str>,
        one: &Idle,
        step: fn(Key) -> Step,
        steps: &mut Vec<Step>,
    ) -> bool {
        let gpus = self.gpus.iter_mut().filter(|(name, _)| gpu.is_none_or(|gpu| gpu == *name));
        let held = gpus.map(|(_, gpu)| gpu).find_map(|gpu| gpu.held.get_mut(&one.key));
        let Some(held) = held.filter(|held| held.leaving.is_none()) else { return false };
        held.leaving = Some(one.frees);
        steps.push(step(one.key));
        true
    }
}

impl Idle {
    /// How many requests a second it saves for each byte.
    fn value(&self) -> f64 {
        self.rate / self.frees.max(1) as f64
    }
}
