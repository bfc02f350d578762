//! What a service and the GPU [memory](crate::memory) of all have to say to each other.

use std::sync::Arc;
use std::time::Instant;

use rekindle_protocol::daemon::Level;

use super::Service;
use crate::memory::Holding;
use crate::plan::{Place, Source};
use crate::policy::{Action, IdleInstance, Policy, Stage};
use crate::upstream::Upstream;

impl Service {
    /// There is GPU memory for an instance.
    pub(crate) fn granted(self: &Arc<Self>, number: u32) {
        let mut is_taken = false;
        self.act(|policy, now| is_taken = policy.granted(number, now));
        match self.instance(number) {
            _ if is_taken => {}
            // Its GPU was full when it was to be woken.
            Some((_, Stage::Waking)) => self.perform(Action::Wake { instance: number }),
            Some((source, Stage::Asleep)) => {
                self.memory.hold(self.key(number), &source.need.gpu, resting(&source, self.level(number)));
            }
            Some(_) => {}
            None => self.memory.gone(self.key(number)),
        }
    }

    /// There can be no GPU memory for an instance.
    pub(crate) fn not_granted(self: &Arc<Self>, number: u32, why: String) {
        match self.instance(number) {
            Some((_, Stage::Waiting)) => self.not_started(number, why),
            Some(_) => self.act(|policy, now| policy.woke(number, Err(why), now)),
            None => {}
        }
    }

    /// Has an instance go one stage down that nobody needs; false if somebody does by now.
    pub(crate) fn demote(self: &Arc<Self>, number: u32) -> bool {
        let mut goes = false;
        self.act(|policy, now| goes = policy.demote(number, now));
        goes
    }

    /// As [`Service::demote`], for there to be one instance less.
    pub(crate) fn dismiss(self: &Arc<Self>, number: u32) -> bool {
        let mut goes = false;
        self.act(|policy, now| goes = policy.dismiss(number, now));
        goes
    }

    pub(crate) fn idle(&self, now: Instant) -> Vec<IdleInstance> {
        self.lock().policy.idle(now)
    }

    /// Whether there is memory for a further instance on this one of its GPUs.
    pub(super) fn has_room(&self, gpu: &str) -> bool {
        let source = self.source().and_then(|source| source.on(gpu));
        source.is_some_and(|source| self.memory.has_room(self.number, &source))
    }

    /// Has the policy know what a further instance of a source finds on the GPUs where it may be.
    pub(super) fn note_rooms(&self, policy: &mut Policy, source: Option<&Source>) {
        let Some(source) = source.filter(|source| source.gpus.len() > 1) else { return };
        let of = |place: &Place| {
            let room = self.memory.room(self.number, &source.on(&place.counted)?);
            Some((place.counted.clone(), room))
        };
        policy.note_rooms(source.gpus.iter().filter_map(of).collect());
    }

    /// Has it know what those find where they are that sleep on one of several GPUs.
    pub(super) fn note_rooms_to_wake(&self, policy: &mut Policy) {
        let of = |(number, source)| (number, self.memory.room_to_wake(self.key(number), source));
        let rooms = policy.asleep().map(of).collect();
        policy.note_rooms_to_wake(rooms);
    }

    /// Looks how much GPU memory instances have that run.
    pub fn measure(&self) {
        if let Some(canary) = self.canary() {
            canary.service.measure();
        }
        let running: Vec<(u32, Source, Arc<Upstream>)> = {
            let state = self.lock();
            let of = |(number, _, stage, _): (u32, u32, Stage, u32)| {
                let source = state.policy.instance(number)?.0.clone();
                let upstream = state.upstreams.get(&number).filter(|_| stage == Stage::Running)?;
                Some((number, source, upstream.clone()))
            };
            state.policy.instances().filter_map(of).collect()
        };
        for (number, source, upstream) in running {
            if let Some(holding) = upstream.instance.memory() {
                self.memory.measured(self.key(number), &source, holding);
            }
        }
    }

    pub(super) fn tell_shortage(self: &Arc<Self>, number: u32) {
        if let Some(why) = self.memory.why(self.key(number)) {
            self.act(|policy, _| policy.tell_shortage(number, why));
        }
    }
}

/// What an instance has of its GPU while it sleeps at a level.
pub(super) fn resting(source: &Source, level: Option<Level>) -> Holding {
    match level {
        Some(Level::Gpu) => Holding { own: source.need.program, data: source.need.data.clone() },
        _ => Holding::default(),
    }
}
