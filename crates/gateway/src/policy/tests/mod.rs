//! The policy, driven by hand and at random. Time is given in.

mod failures;
mod idle;
mod memory;
mod placement;
mod random;
mod requests;
mod rollouts;
mod stages;

use std::time::{Duration, Instant};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn plan() -> Plan {
    Plan {
        min: 0,
        max: 3,
        concurrency: 2,
        idle_ms: 10_000,
        idle_end_ms: 100_000,
        stages: Vec::new(),
        context_ms: 0,
        queue: 4,
        timeout_ms: 60_000,
    }
}

fn source(image: &str) -> Source {
    Source { image: image.into(), id: image.into(), to: 80, ..Source::default() }
}

/// A policy, and the time.
struct Scenario {
    policy: Policy,
    now: Instant,
    /// There is GPU memory for all that claim some.
    has_memory: bool,
    done: Vec<String>,
}

impl Scenario {
    fn of(plan: Plan) -> Scenario {
        let policy = Policy::new(plan, Some(source("one")));
        Scenario { policy, now: Instant::now(), has_memory: true, done: Vec::new() }
    }

    fn asks(&mut self) -> u64 {
        let request =
            self.policy.arrive(self.now, self.now + self.policy.plan().timeout(), Coming::Anew, (true, None));
        self.grant();
        request
    }

    fn ask(&mut self, times: u32) {
        for _ in 0..times {
            self.asks();
        }
    }

    fn again(&mut self, avoid: impl Into<Option<u32>>) -> u64 {
        let coming = Coming::Again { avoid: avoid.into() };
        let request =
            self.policy.arrive(self.now, self.now + self.policy.plan().timeout(), coming, (true, None));
        self.grant();
        request
    }

    fn passes(&mut self, time: Duration) -> &mut Scenario {
        self.now += time;
        self.policy.tick(self.now);
        self.grant();
        self
    }

    fn ready(&mut self, number: u32) -> &mut Scenario {
        self.policy.ready(number, self.now);
        self.grant();
        self
    }

    fn answered(&mut self, number: u32) -> &mut Scenario {
        self.policy.done(number, Outcome::Answered, self.now);
        self.grant();
        self
    }

    /// What is to be done, in words. What is claimed is granted at once, if there is memory.
    fn then(&mut self) -> Vec<String> {
        self.grant();
        std::mem::take(&mut self.done)
    }

    fn grant(&mut self) {
        loop {
            let words = self.words();
            if words.is_empty() {
                return;
            }
            for word in words {
                match word.strip_prefix("claim ").filter(|_| self.has_memory) {
                    Some(number) => assert!(self.policy.granted(number.parse().unwrap(), self.now)),
                    None => self.done.push(word),
                }
            }
        }
    }

    fn words(&mut self) -> Vec<String> {
        let words = |action| match action {
            Action::Claim { instance, .. } => format!("claim {instance}"),
            Action::Move { instance, source } => format!("move {instance} to {}", source.need.gpu),
            Action::Withdraw { instance } => format!("withdraw {instance}"),
            Action::Start { instance, source, .. } => format!("start {instance} of {}", source.image),
            Action::Sleep { instance, level: Level::Host } => format!("sleep {instance}"),
            Action::Sleep { instance, level } => format!("sleep {instance} at {level:?}"),
            Action::CallOff { instance } => format!("call off {instance}"),
            Action::Wake { instance } => format!("wake {instance}"),
            Action::End { instance } => format!("end {instance}"),
            Action::Send { request, instance } => format!("{request} to {instance}"),
            Action::Refuse { request, why: Refusal::Full } => format!("{request} full"),
            Action::Refuse { request, why: Refusal::TooLong { .. } } => format!("{request} too long"),
            Action::Refuse { request, why: Refusal::NoInstance { problem, again } } => {
                format!("{request} none for {} ms: {problem}", again.as_millis())
            }
            Action::Refuse { request, why: Refusal::Draining } => format!("{request} draining"),
            Action::RolledOut(how) => format!("rolled out: {how:?}"),
        };
        self.policy.take().into_iter().map(words).collect()
    }

    /// With instances that run, as many as requested.
    fn running(plan: Plan, count: u32) -> Scenario {
        let mut scenario = Scenario::of(Plan { min: count, ..plan.clone() });
        scenario.passes(SECOND);
        scenario.then();
        for number in 1..=count {
            scenario.ready(number);
        }
        scenario.policy.replan(plan, scenario.now);
        scenario.then();
        scenario
    }
}
