//! Who is sent what, and how many instances there are for it.

use std::time::{Duration, Instant};

use super::instance::Instance;
use super::near::{Candidate, pick};
use super::queue::Waiting;
use super::{Action, Near, Policy, Refusal, Room, SleepStage, Stage, total};

impl Policy {
    /// Does all that is due.
    pub(super) fn settle(&mut self, now: Instant) {
        let (over, problem) = (self.queue.expired(now), self.problem().map(str::to_string));
        self.refuse(over, Refusal::TooLong { problem });
        self.give_up_rollout(now);
        self.send(now);
        self.refuse_without_hope(now);
        self.grow(now);
        self.call_off();
        self.retire();
        self.withdraw_surplus(now);
        self.look_elsewhere(now);
        self.shrink(now);
        self.end_shortage();
    }

    pub(super) fn send(&mut self, now: Instant) {
        let mut place = 0;
        while let Some(waiting) = self.queue.get(place).cloned() {
            let Some(number) = self.choose(&waiting) else {
                if waiting.avoid.is_none() {
                    return;
                }
                place += 1;
                continue;
            };
            self.queue.take(place);
            if let Some(instance) = self.instances.get_mut(&number) {
                instance.in_flight += 1;
                (instance.since, instance.was_asked) = (now, true);
                self.actions.push(Action::Send { request: waiting.request, instance: number });
                let is_there = |near: &Near| instance.source.need.gpu == near.gpu;
                if let Some(near) = waiting.near.filter(|near| !is_there(near)) {
                    self.bring_near(&near, now);
                }
            }
        }
    }

    /// The instance with the fewest requests, or one where the request's arrays are; of equals the first, so that the others
    /// come to rest.
    fn choose(&self, Waiting { avoid, near, .. }: &Waiting) -> Option<u32> {
        let (avoid, concurrency) = (*avoid, self.plan.concurrency);
        let ranked = |(number, instance): (&u32, &Instance)| {
            let (stage, in_flight) = instance.rank(concurrency).filter(|_| !self.is_candidate(*number))?;
            let is_near = near.as_ref().is_some_and(|near| near.gpu == instance.source.need.gpu);
            Some(Candidate { stage, in_flight, number: *number, is_near })
        };
        let others = self.instances.iter().filter(|(number, _)| Some(**number) != avoid);
        let other = pick(&others.filter_map(ranked).collect::<Vec<_>>(), concurrency);
        // The one that failed it is asked again if it has to be the only one.
        let same = || {
            let number = avoid.filter(|_| self.is_full())?;
            let is_alone = self.active().all(|other| other == number);
            self.instances.get_key_value(&number).filter(|_| is_alone).and_then(ranked)
        };
        other.or_else(same).map(|one| one.number)
    }

    /// Numbers of instances that are there, or will be, for further requests.
    pub(super) fn active(&self) -> impl Iterator<Item = u32> {
        let active =
            self.instances.iter().filter(|(number, one)| one.is_active() && !self.is_candidate(**number));
        active.map(|(number, _)| *number)
    }

    /// There are as many as may be.
    pub(super) fn is_full(&self) -> bool {
        self.active().count() >= self.plan.max as usize
    }

    pub(super) fn count(&self, wanted: impl Fn(&Instance) -> bool) -> usize {
        self.active().filter(|number| self.instances.get(number).is_some_and(&wanted)).count()
    }

    pub(super) fn may_start(&self, now: Instant) -> bool {
        let starting = self.count(|instance| matches!(instance.stage, Stage::Starting | Stage::Waiting));
        // After one that came to nothing they are tried one by one.
        self.not_before.is_none_or(|time| time <= now) && (self.failures == 0 || starting == 0)
    }

    /// Nobody waits for instances that cannot be had.
    fn refuse_without_hope(&mut self, now: Instant) {
        let Some(time) = self.not_before.filter(|time| self.is_hopeless && *time > now) else { return };
        if self.active().next().is_none() && self.rollout.is_none() {
            let problem = self.problem.clone().unwrap_or_default();
            let waiting = self.queue.clear();
            self.refuse(waiting, Refusal::NoInstance { problem, again: time - now });
        }
    }

    fn grow(&mut self, now: Instant) {
        loop {
            let is_wanted = self.is_crowded(0) || self.is_short(0);
            let is_sooner =
                |number| self.has_more_than_wake(0) && self.room_to_wake(number, now) == Room::AtOnce;
            match self.next_asleep(now) {
                // One that wakes is there before one that starts, unless it has to wait.
                Some(number) if is_wanted || is_sooner(number) => {
                    match self.instead_of_waking(number, now).filter(|_| self.needs_further()) {
                        Some(source) => self.start_instead(number, source, now),
                        None => self.claim_to_wake(number, now),
                    }
                }
                _ if self.needs_further() && !self.is_full() && self.may_start(now) => {
                    let Some(source) = self.next_source(now) else { return };
                    self.start(source, self.generation, now);
                }
                _ => return,
            }
        }
    }

    /// More wait than those that are coming can take: who goes to a lower level is wanted.
    fn call_off(&mut self) {
        if !self.is_crowded(0) && !self.is_short(0) {
            return;
        }
        let goes_down = |number: &u32| {
            self.instances.get(number).is_some_and(|one| one.goes_down() && !one.is_called_off)
        };
        let all: Vec<u32> = self.active().filter(goes_down).collect();
        for number in all {
            self.instances.entry(number).and_modify(|one| one.is_called_off = true);
            self.actions.push(Action::CallOff { instance: number });
        }
    }

    /// Whether more wait than those that are coming can take, without so many of them.
    fn is_crowded(&self, without: usize) -> bool {
        let coming = self.count(Instance::is_coming).saturating_sub(without);
        self.queue.len() > coming * self.plan.concurrency as usize
    }

    /// Whether one more is to be started: one that falls asleep just now is woken by who came meanwhile.
    fn needs_further(&self) -> bool {
        let falling = self.count(|instance| instance.stage == Stage::FallingAsleep);
        let places = |instances: usize| instances * self.plan.concurrency as usize;
        let left = self.queue.len() - self.queue.fresh().min(places(falling));
        left > places(self.count(Instance::is_coming)) || self.is_short(0)
    }

    /// Whether more wait than those that are about to wake can take, without so many of them.
    fn has_more_than_wake(&self, without: usize) -> bool {
        let waking = self.count(|instance| instance.wants_to_wake).saturating_sub(without);
        self.queue.len() > waking * self.plan.concurrency as usize
    }

    /// Whether fewer stay awake than are to, without so many of them.
    fn is_short(&self, without: usize) -> bool {
        let awake = self.count(Instance::is_awake).saturating_sub(without);
        !self.draining && awake < self.plan.min as usize
    }

    /// Nobody needs those any more that wait for GPU memory.
    fn withdraw_surplus(&mut self, now: Instant) {
        let is_welcome =
            |number: &u32| self.instances.get(number).is_some_and(|instance| instance.is_welcome(now));
        let waits = |number: &u32| self.stage(*number) == Some(Stage::Waiting) && !is_welcome(number);
        let mut waiting: Vec<u32> = self.active().filter(waits).collect();
        while let Some(number) = waiting.pop().filter(|_| !self.is_crowded(1) && !self.is_short(1)) {
            self.withdraw(number);
        }
        let sleeps = |number: &u32| {
            self.instances.get(number).is_some_and(|one| one.wants_to_wake && !one.is_welcome(now))
        };
        let mut asleep: Vec<u32> = self.active().filter(sleeps).collect();
        while let Some(number) = asleep.pop().filter(|_| !self.has_more_than_wake(1) && !self.is_short(1)) {
            self.withdraw(number);
        }
    }

    /// Lets go of instances that are too many, and of all in the end.
    fn retire(&mut self) {
        if self.draining && self.queue.len() == 0 {
            let all: Vec<u32> = self.active().collect();
            for number in all {
                self.instances.entry(number).and_modify(|instance| instance.retiring = true);
            }
        }
        while self.active().count() > self.plan.max as usize {
            let least_needed = |number: &u32| {
                let instance = self.instances.get(number);
                let awake = instance.is_some_and(Instance::is_awake);
                (!awake, std::cmp::Reverse(instance.map_or(0, |one| one.in_flight)), *number)
            };
            let Some(number) = self.active().max_by_key(least_needed) else { return };
            self.instances.entry(number).and_modify(|instance| instance.retiring = true);
        }
    }

    fn shrink(&mut self, now: Instant) {
        let idle = self.plan.idle();
        let resting =
            self.instances.iter().filter(|(number, one)| one.in_flight == 0 && !self.is_candidate(**number));
        let resting: Vec<u32> = resting.map(|(number, _)| *number).collect();
        for number in resting.into_iter().rev() {
            let Some(instance) = self.instances.get(&number).cloned() else { continue };
            let rested = now.saturating_duration_since(instance.since);
            let may_go = self.queue.len() == 0 && self.count(Instance::is_awake) > self.plan.min as usize;
            match instance.stage {
                Stage::Running | Stage::Asleep | Stage::Waiting if instance.retiring => self.end(number),
                Stage::Asleep if !instance.wants_to_wake => self.sleep_on(number, &instance, rested, now),
                Stage::Running if may_go && rested >= idle => {
                    let stages = self.plan.sleeps(instance.source.level);
                    match stages.first() {
                        Some(first) if !instance.cannot_sleep => self.fall_asleep(number, first.level),
                        _ if rested >= idle + total(&stages) => self.end(number),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes one that sleeps on, once it has slept at its level for long enough.
    fn sleep_on(&mut self, number: u32, instance: &Instance, rested: Duration, now: Instant) {
        let stages = self.stages_left(instance);
        let may_go_down = instance.stays_until.is_none_or(|until| until <= now);
        match stages[..] {
            _ if rested >= total(&stages) => self.end(number),
            [here, next, ..] if may_go_down && rested >= here.time() => self.fall_asleep(number, next.level),
            _ => {}
        }
    }

    /// What is left of its stages to one that sleeps.
    pub(super) fn stages_left(&self, instance: &Instance) -> Vec<SleepStage> {
        let only = instance.source.level;
        self.plan.sleeps_on(instance.level.unwrap_or(only), only)
    }

    pub(super) fn stage(&self, number: u32) -> Option<Stage> {
        self.instances.get(&number).map(|instance| instance.stage)
    }
}
