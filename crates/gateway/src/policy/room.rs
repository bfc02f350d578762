//! GPU memory: instances that wait for it, and those that others need it of.

use std::time::Instant;

use rekindle_protocol::daemon::Level;

use super::instance::Instance;
use super::{Action, Policy, Stage};

/// An instance that has no request, and may go one stage down.
#[derive(Clone, Debug, PartialEq)]
pub struct IdleInstance {
    pub instance: u32,
    /// Requests a second of its service, for each instance that is awake.
    pub rate: f64,
    /// It keeps its memory on the GPU when it goes down, and gives back its context alone: so many bytes.
    pub keeps_memory: bool,
    pub context: u64,
    /// It sleeps, or cannot: nothing but its end makes room for another instance.
    pub ends: bool,
    pub since: Instant,
}

impl Policy {
    /// There is GPU memory for an instance; false if it does not want that any more.
    pub fn granted(&mut self, number: u32, now: Instant) -> bool {
        let limit = self.start_limit(number);
        let Some(instance) = self.instances.get_mut(&number) else { return false };
        match instance.stage {
            Stage::Waiting => {
                (instance.stage, instance.since) = (Stage::Starting, now);
                let (slot, source) = (instance.slot, instance.source.clone());
                self.actions.push(Action::Start { instance: number, slot, source, limit });
            }
            Stage::Asleep if instance.wants_to_wake => {
                instance.wants_to_wake = false;
                self.enter(number, Stage::Waking, now);
                // Its program begins with the requests while its GPU half wakes.
                self.send(now);
                self.actions.push(Action::Wake { instance: number });
            }
            _ => return false,
        }
        self.settle(now);
        true
    }

    /// The GPU was full when an instance was to be started: it waits again, and elsewhere if there is room.
    pub fn found_full(&mut self, number: u32, now: Instant) {
        self.avoid_gpu(number, now);
        if let Some(instance) = self.instances.get_mut(&number).filter(|one| one.stage == Stage::Starting) {
            (instance.stage, instance.welcome_until) = (Stage::Waiting, None);
        }
        self.settle(now);
    }

    /// Why an instance waits for GPU memory, if it still does.
    pub fn tell_shortage(&mut self, number: u32, why: String) {
        if self.instances.get(&number).is_some_and(Instance::waits_for_memory) {
            self.shortage = Some(why);
        }
    }

    /// Forgets why instances waited once none does.
    pub(super) fn end_shortage(&mut self) {
        if !self.instances.values().any(Instance::waits_for_memory) {
            self.shortage = None;
        }
    }

    /// The instances that have no request and are not among those that stay awake, beginning with those that have rested
    /// longest.
    pub fn idle(&self, now: Instant) -> Vec<IdleInstance> {
        let awake = self.count(Instance::is_awake);
        let mut spare = awake.saturating_sub(self.plan.min as usize);
        let rests = |(number, one): &(&u32, &Instance)| {
            let is_there = matches!(one.stage, Stage::Running | Stage::Asleep);
            is_there && one.in_flight == 0 && !one.wants_to_wake && !self.is_candidate(**number)
        };
        let mut resting: Vec<_> = self.instances.iter().filter(rests).collect();
        resting.sort_by_key(|(_, one)| one.since);
        let rate = self.rate.of(now) / awake.max(1) as f64;
        let idle = resting.into_iter().filter(|(_, one)| {
            let may_go = one.stage == Stage::Asleep || spare > 0;
            spare -= usize::from(may_go && one.stage == Stage::Running);
            may_go
        });
        idle.map(|(number, one)| IdleInstance {
            instance: *number,
            rate,
            keeps_memory: one.stage == Stage::Running && self.next_level(one, now) == Some(Level::Gpu),
            context: one.source.need.context,
            ends: one.stage == Stage::Asleep || one.cannot_sleep,
            since: one.since,
        })
        .collect()
    }

    /// Where one sleeps that goes down for others; none if that is its end.
    fn next_level(&self, instance: &Instance, now: Instant) -> Option<Level> {
        let next = match instance.stage {
            Stage::Asleep if instance.stays_until.is_some_and(|until| until > now) => None,
            Stage::Asleep => self.stages_left(instance).get(1).copied(),
            _ if instance.cannot_sleep => None,
            // At level `gpu` it would keep what is needed.
            _ => {
                let stages = self.plan.sleeps(instance.source.level);
                stages.iter().find(|stage| stage.level != Level::Gpu).or(stages.first()).copied()
            }
        };
        next.map(|stage| stage.level)
    }

    /// Others need the memory of an instance: it goes one stage down. False if it has something to do by now.
    pub fn demote(&mut self, number: u32, now: Instant) -> bool {
        let next = self.instances.get(&number).and_then(|one| self.next_level(one, now));
        self.go_down(number, next, now)
    }

    /// Another instance is to have its place: it ends, or sleeps before, as [`Policy::demote`].
    pub fn dismiss(&mut self, number: u32, now: Instant) -> bool {
        let awake = self.instances.get(&number).filter(|one| one.stage == Stage::Running);
        let next = awake.and_then(|one| self.next_level(one, now));
        self.go_down(number, next, now)
    }

    fn go_down(&mut self, number: u32, to: Option<Level>, now: Instant) -> bool {
        if !self.idle(now).iter().any(|idle| idle.instance == number) {
            return false;
        }
        match to {
            Some(level) => self.fall_asleep(number, level),
            None => self.end(number),
        }
        self.settle(now);
        true
    }

    pub(super) fn fall_asleep(&mut self, number: u32, level: Level) {
        self.instances.entry(number).and_modify(|one| {
            (one.stage, one.goes_to) = (Stage::FallingAsleep, Some(level));
        });
        self.actions.push(Action::Sleep { instance: number, level });
    }

    pub(super) fn claim_to_wake(&mut self, number: u32, now: Instant) {
        if let Some(instance) = self.instances.get_mut(&number) {
            (instance.wants_to_wake, instance.claimed) = (true, now);
            let source = instance.source.clone();
            self.actions.push(Action::Claim { instance: number, source });
        }
    }

    /// An instance waits for GPU memory no longer: one that was to be started is not there any more.
    pub(super) fn withdraw(&mut self, number: u32) {
        match self.instances.get_mut(&number) {
            Some(instance) if instance.stage == Stage::Waiting => {
                self.instances.remove(&number);
                self.rollout_failed(number, "it is not wanted any more");
            }
            Some(instance) => instance.wants_to_wake = false,
            None => return,
        }
        self.actions.push(Action::Withdraw { instance: number });
    }
}
