//! A new image in place of the one that a service has.
//!
//! One instance of it is started beside all others, and takes no request. Once it listens it and those after it have the
//! service, and the others retire; if it does not, nothing has changed.

use std::time::{Duration, Instant};

use super::{Action, Policy, Stage};
use crate::plan::{Plan, Source};

pub struct Rollout {
    source: Source,
    plan: Plan,
    /// The instance that is to listen first.
    pub candidate: u32,
    since: Instant,
}

impl Policy {
    /// Begins; false if one is under way.
    pub fn roll_out(&mut self, source: Source, plan: Plan, now: Instant) -> bool {
        if self.rollout.is_some() {
            return false;
        }
        let first = self.roomiest(&source, now).unwrap_or_else(|| source.clone());
        let candidate = self.start(first, self.generation + 1, now);
        self.rollout = Some(Rollout { source, plan, candidate, since: now });
        true
    }

    /// What is rolled out just now.
    pub(super) fn rollout_source(&self) -> Option<&Source> {
        self.rollout.as_ref().map(|rollout| &rollout.source)
    }

    /// Until when the first instance may wait for GPU memory.
    pub(super) fn rollout_deadline(&self) -> Option<Instant> {
        let rollout = self.rollout.as_ref()?;
        let waits = self.stage(rollout.candidate) == Some(Stage::Waiting);
        waits.then(|| rollout.since + rollout.plan.timeout())
    }

    /// Gives a rollout up whose first instance gets no GPU memory.
    pub(super) fn give_up_rollout(&mut self, now: Instant) {
        if self.rollout_deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        if let Some(number) = self.rollout.as_ref().map(|rollout| rollout.candidate) {
            let why = self.shortage.clone().unwrap_or_else(|| "there is no GPU memory for it".to_string());
            self.rollout_failed(number, &format!("no instance of it could be started in time: {why}"));
            self.withdraw(number);
        }
    }

    /// How long an instance may take until it listens.
    pub(super) fn start_limit(&self, number: u32) -> Duration {
        let rollout = self.rollout.as_ref().filter(|rollout| rollout.candidate == number);
        rollout.map_or(&self.plan, |rollout| &rollout.plan).timeout()
    }

    pub(super) fn rolled_out(&mut self, number: u32, now: Instant) {
        let Some(rollout) = self.rollout.take_if(|rollout| rollout.candidate == number) else { return };
        self.generation += 1;
        (self.source, self.plan) = (Some(rollout.source), rollout.plan);
        (self.failures, self.not_before, self.problem) = (0, None, None);
        (self.draining, self.is_over) = (false, false);
        for instance in self.instances.values_mut() {
            instance.retiring |= instance.generation != self.generation;
        }
        self.actions.push(Action::RolledOut(Ok(())));
        self.settle(now);
    }

    /// Whether that instance was the one that was to listen first, which is not there any more.
    pub(super) fn rollout_failed(&mut self, number: u32, why: &str) -> bool {
        let failed = self.rollout.take_if(|rollout| rollout.candidate == number).is_some();
        if failed {
            self.actions.push(Action::RolledOut(Err(why.to_string())));
        }
        failed
    }

    pub(super) fn is_candidate(&self, number: u32) -> bool {
        self.rollout.as_ref().is_some_and(|rollout| rollout.candidate == number)
    }
}
