//! What a service does about what happens: a state machine without clocks, threads or sockets.
//!
//! ```text
//!  arrive ─▶ queue ─▶ Send ─▶ done   Claim ─▶ waiting ─▶ Start ─▶ starting ─▶ running ◀── waking ◀─┐ Claim, Wake
//!               └─▶ Refuse                                             Sleep │                        │
//!                                                                            └─▶ falling asleep ─▶ asleep ─▶ End ─▶ ending
//!                                                                                      ▲             │
//!                                                                                      └─── Sleep ◀──┘ at the next level
//! ```
//!
//! What sleeps goes down [level](SleepStage) by level. A request that comes meanwhile calls that off, and the instance is woken
//! once it is at rest again.
//!
//! An instance is started, and woken, once it was granted the GPU memory that it claims; it is for somebody else to know who
//! has how much ([`crate::memory`]), and to [demote](Policy::demote) one that others need the memory of.
//!
//! Each event says when it happened, and leaves behind what is to be done about it ([`Policy::take`]). An instance that
//! wakes is sent requests as one that runs: its program goes on up to its first GPU call while its GPU half wakes.

mod elsewhere;
mod instance;
mod near;
mod queue;
mod rate;
mod rollout;
mod room;
mod scale;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::Level;
use rekindle_protocol::service::SleepStage;
use serde::Serialize;

use crate::plan::{Plan, Source};
use instance::Instance;
use queue::{Queue, Waiting};
use rate::Rate;
use rollout::Rollout;

pub use elsewhere::Room;
pub use instance::Stage;
pub use near::Near;
pub use queue::Coming;
pub use room::IdleInstance;

/// How long the next instance waits after one that came to nothing; twice as long after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long one that could not go to a lower level waits before it tries again.
const STAYS: Duration = Duration::from_secs(30);

/// What is to be done. Instances are known by numbers that no two have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It needs GPU memory: [`Policy::granted`] is to follow.
    Claim {
        instance: u32,
        source: Source,
    },
    /// It needs GPU memory elsewhere, and not where it has claimed it.
    Move {
        instance: u32,
        source: Source,
    },
    /// What was claimed is not needed any more.
    Withdraw {
        instance: u32,
    },
    /// It is named after its seat, and is to listen within this time.
    Start {
        instance: u32,
        slot: u32,
        source: Source,
        limit: Duration,
    },
    /// Whether it runs or sleeps at a higher level: [`Policy::slept`] is to follow.
    Sleep {
        instance: u32,
        level: Level,
    },
    /// An instance that goes to a lower level is wanted: it need not.
    CallOff {
        instance: u32,
    },
    Wake {
        instance: u32,
    },
    End {
        instance: u32,
    },
    Send {
        request: u64,
        instance: u32,
    },
    Refuse {
        request: u64,
        why: Refusal,
    },
    /// An image that was to be rolled out serves, or does not and why.
    RolledOut(Result<(), String>),
}

/// Why a request is sent to nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As many wait as may.
    Full,
    /// It has waited as long as it may.
    TooLong { problem: Option<String> },
    /// There is no instance, and none can be had before that.
    NoInstance { problem: String, again: Duration },
    /// The service takes no more.
    Draining,
}

/// How a request left an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answered,
    /// The client was told of a failure, or has only a part of the answer.
    Broken,
    /// The client did not wait for it, or another instance is asked, or it does not count.
    Unheard,
}

/// Requests since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub served: u64,
    pub failed: u64,
    pub refused: u64,
}

pub struct Policy {
    plan: Plan,
    /// Where further instances come from; none before the first rollout.
    source: Option<Source>,
    /// Grows with each change of the source.
    generation: u64,
    rollout: Option<Rollout>,
    instances: BTreeMap<u32, Instance>,
    /// The last instance's number.
    last: u32,
    queue: Queue,
    draining: bool,
    /// All instances were ended while the service drains: what they had is sent to no other.
    is_over: bool,
    /// How many instances in a row came to nothing.
    failures: u32,
    not_before: Option<Instant>,
    /// Whether the last of them never listened, so that the next one is no better.
    is_hopeless: bool,
    problem: Option<String>,
    counts: Counts,
    rate: Rate,
    /// Why instances wait for GPU memory, if one does.
    shortage: Option<String>,
    /// GPUs on which no instance is started before these times if others have room.
    avoided: BTreeMap<String, Instant>,
    /// What a further instance finds on the GPUs where it may be.
    rooms: BTreeMap<String, Room>,
    /// What instances that sleep find to wake.
    rooms_to_wake: BTreeMap<u32, Room>,
    actions: Vec<Action>,
}

impl Policy {
    /// Of a service whose first image is yet to be rolled out, or with `source` of one that was there before.
    pub fn new(plan: Plan, source: Option<Source>) -> Policy {
        Policy {
            plan,
            source,
            generation: 0,
            rollout: None,
            instances: BTreeMap::new(),
            last: 0,
            queue: Queue::default(),
            draining: false,
            is_over: false,
            failures: 0,
            not_before: None,
            is_hopeless: false,
            problem: None,
            counts: Counts::default(),
            rate: Rate::default(),
            shortage: None,
            avoided: BTreeMap::new(),
            rooms: BTreeMap::new(),
            rooms_to_wake: BTreeMap::new(),
            actions: Vec::new(),
        }
    }

    /// What is to be done about all that has happened, in this order.
    pub fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// A request comes, which counts among those that the service has had or does not. One that comes again goes to another
    /// instance than the one that has failed it if it can, and is not refused a place in the queue.
    /// `near`: where its arrays lie, if that is known.
    pub fn arrive(
        &mut self,
        now: Instant,
        deadline: Instant,
        coming: Coming,
        (counts, near): (bool, Option<Near>),
    ) -> u64 {
        let request = self.queue.push(deadline, coming, (counts, near));
        let is_new = coming == Coming::Anew;
        if self.draining && (is_new || self.is_over) {
            let waiting = self.queue.remove(request);
            self.refuse(waiting, Refusal::Draining);
            return request;
        }
        if is_new && counts {
            self.rate.note(now);
        }
        self.settle(now);
        if is_new && self.queue.len() > self.plan.queue as usize {
            let waiting = self.queue.remove(request);
            self.refuse(waiting, Refusal::Full);
        }
        request
    }

    /// The client of a request that waits has gone.
    pub fn gone(&mut self, request: u64, now: Instant) {
        self.queue.remove(request);
        self.settle(now);
    }

    /// An instance is done with a request.
    pub fn done(&mut self, number: u32, outcome: Outcome, now: Instant) {
        match outcome {
            Outcome::Answered => {
                self.counts.served += 1;
                (self.failures, self.not_before, self.problem) = (0, None, None);
            }
            Outcome::Broken => self.counts.failed += 1,
            Outcome::Unheard => {}
        }
        if let Some(instance) = self.instances.get_mut(&number) {
            instance.in_flight = instance.in_flight.saturating_sub(1);
            instance.has_served |= outcome == Outcome::Answered;
            instance.since = now;
        }
        self.settle(now);
    }

    /// An instance listens.
    pub fn ready(&mut self, number: u32, now: Instant) {
        self.enter(number, Stage::Running, now);
        self.rolled_out(number, now);
        self.settle(now);
    }

    /// An instance did not come to listen, and is not there any more.
    pub fn not_started(&mut self, number: u32, why: String, now: Instant) {
        self.avoid(number, now);
        self.instances.remove(&number);
        if !self.rollout_failed(number, &why) {
            self.came_to_nothing(why, now);
            self.is_hopeless = true;
        }
        self.settle(now);
    }

    /// An instance has fallen asleep, or has gone to a lower level, or cannot.
    pub fn slept(&mut self, number: u32, slept: bool, now: Instant) {
        if let Some(instance) = self.instances.get_mut(&number).filter(|found| found.stage != Stage::Ending) {
            let goes_to = instance.goes_to.take();
            let was_called_off = std::mem::take(&mut instance.is_called_off);
            match (slept, instance.level) {
                (true, _) => {
                    (instance.stage, instance.since) = (Stage::Asleep, now);
                    (instance.level, instance.stays_until) = (goes_to, None);
                    instance.asleep_since.get_or_insert(now);
                }
                // It sleeps on where it was.
                (false, Some(_)) => {
                    instance.stage = Stage::Asleep;
                    instance.stays_until = (!was_called_off).then(|| now + STAYS);
                }
                // One that stays awake has been idle all the while.
                (false, None) => (instance.stage, instance.cannot_sleep) = (Stage::Running, true),
            }
        }
        self.settle(now);
    }

    /// The GPU half of an instance is awake, or could not be woken, and the instance is of no use any more.
    pub fn woke(&mut self, number: u32, woke: Result<(), String>, now: Instant) {
        match woke {
            Ok(()) => {
                self.enter(number, Stage::Running, now);
                self.instances.entry(number).and_modify(|instance| {
                    (instance.level, instance.asleep_since) = (None, None);
                });
            }
            Err(why) => {
                self.came_to_nothing(why, now);
                self.end(number);
            }
        }
        self.settle(now);
    }

    /// An instance does not let anybody in any more, though it is there.
    pub fn unreachable(&mut self, number: u32, why: String, now: Instant) {
        if self.instances.get(&number).is_some_and(|instance| instance.stage != Stage::Ending) {
            self.came_to_nothing(why, now);
            self.end(number);
        }
        self.settle(now);
    }

    /// The GPU context of an instance is over: another one takes its place, and it ends with the last request that it has.
    pub fn faulted(&mut self, number: u32, why: String, now: Instant) {
        if let Some(instance) = self.instances.get_mut(&number).filter(|instance| instance.is_active()) {
            instance.retiring = true;
            match instance.has_served {
                // The next one is wanted at once.
                true => self.problem = Some(why),
                false => self.came_to_nothing(why, now),
            }
        }
        self.settle(now);
    }

    /// An instance is not there any more.
    pub fn ended(&mut self, number: u32, why: String, now: Instant) {
        if let Some(gone) = self.instances.remove(&number)
            && gone.stage != Stage::Ending
            && !self.rollout_failed(number, &why)
        {
            match gone.has_served {
                // The next one is wanted at once.
                true => self.problem = Some(why),
                false => self.came_to_nothing(why, now),
            }
        }
        self.settle(now);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.settle(now);
    }

    /// When something is to be done next if nothing happens.
    pub fn next_tick(&self, now: Instant) -> Option<Instant> {
        let idle = self.plan.idle();
        let instances = self.instances.values().flat_map(|instance| {
            let since = instance.since;
            let stages = self.plan.sleeps_on(instance.level.unwrap_or(Level::Gpu), instance.source.level);
            let (next, end) = (stages.first().map_or(Duration::ZERO, SleepStage::time), total(&stages));
            [since + idle, since + next, since + end, since + idle + end]
                .into_iter()
                .chain(instance.stays_until)
                .chain(instance.asleep_since.map(|since| since + self.plan.context()))
                .chain(instance.welcome_until)
        });
        let rollout = self.rollout_deadline();
        let elsewhere = self.may_find_room().then(|| now + elsewhere::LOOKS_AGAIN);
        let due = self.not_before.into_iter().chain(rollout).chain(elsewhere);
        let all = self.queue.deadlines().chain(due).chain(instances);
        // What is due was done, or waits for something else than time.
        all.filter(|time| *time > now).min()
    }

    /// No more requests: those that wait are answered, and the instances end.
    pub fn drain(&mut self, now: Instant) {
        self.draining = true;
        self.settle(now);
    }

    /// Ends all instances, whatever they do.
    pub fn end_all(&mut self, now: Instant) {
        (self.draining, self.is_over) = (true, true);
        let numbers: Vec<u32> = self.instances.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.end(number));
        let waiting = self.queue.clear();
        self.refuse(waiting, Refusal::Draining);
        self.settle(now);
    }

    /// Nobody waits, and nothing runs.
    pub fn is_drained(&self) -> bool {
        self.draining && self.instances.is_empty() && self.queue.len() == 0
    }

    pub fn replan(&mut self, plan: Plan, now: Instant) {
        self.plan = plan;
        (self.draining, self.is_over) = (false, false);
        self.settle(now);
    }

    /// An instance that was there before this service: of its image, or of one that it does not have any more. Its number.
    /// What is to be done about it is decided at the next event.
    pub fn adopt(
        &mut self,
        slot: u32,
        asleep: Option<Level>,
        (source, is_current): (&Source, bool),
        now: Instant,
    ) -> u32 {
        let stage = if asleep.is_some() { Stage::Asleep } else { Stage::Running };
        let instance = Instance::new(stage, slot, self.generation, source.clone(), now);
        let asleep_since = asleep.map(|_| now);
        // Who knows what it was asked.
        self.add(Instance { retiring: !is_current, level: asleep, asleep_since, was_asked: true, ..instance })
    }

    /// What instances of the source need is known better by now.
    pub fn learn(&mut self, source: &Source) {
        if let Some(own) = self.source.as_mut().filter(|own| own.makes_the_same(source)) {
            own.need = source.need.clone();
        }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub fn is_draining(&self) -> bool {
        self.draining
    }

    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref().or(self.shortage.as_deref())
    }

    /// Whether no request was answered since an instance came to nothing.
    pub fn came_to_nothing_last(&self) -> bool {
        self.failures > 0
    }

    /// What an instance is made of, and its stage.
    pub fn instance(&self, number: u32) -> Option<(&Source, Stage)> {
        self.instances.get(&number).map(|instance| (&instance.source, instance.stage))
    }

    /// Where the GPU memory of an instance is, if it sleeps.
    pub fn level(&self, number: u32) -> Option<Level> {
        self.instances.get(&number).and_then(|instance| instance.level)
    }

    /// Numbers of instances that sleep and that a context is to be kept for.
    pub fn keep_contexts(&self, now: Instant) -> impl Iterator<Item = u32> {
        let time = self.plan.context();
        let kept = self.instances.iter().filter(move |(_, one)| one.keeps_context(time, now));
        kept.map(|(number, _)| *number)
    }

    /// Number, seat, stage and requests of each instance.
    pub fn instances(&self) -> impl Iterator<Item = (u32, u32, Stage, u32)> + Clone {
        self.instances.iter().map(|(number, one)| (*number, one.slot, one.stage, one.in_flight))
    }

    fn add(&mut self, instance: Instance) -> u32 {
        self.last += 1;
        self.instances.insert(self.last, instance);
        self.last
    }

    /// Has one more be started, of this source, once there is GPU memory for it.
    fn start(&mut self, source: Source, generation: u64, now: Instant) -> u32 {
        let taken = |slot: &u32| self.instances.values().any(|instance| instance.slot == *slot);
        let slot = (1..).find(|slot| !taken(slot)).unwrap_or(u32::MAX);
        let instance = self.add(Instance::new(Stage::Waiting, slot, generation, source.clone(), now));
        self.actions.push(Action::Claim { instance, source });
        instance
    }

    fn refuse(&mut self, requests: impl IntoIterator<Item = Waiting>, why: Refusal) {
        for Waiting { request, counts, .. } in requests {
            self.counts.refused += u64::from(counts);
            self.actions.push(Action::Refuse { request, why: why.clone() });
        }
    }

    fn enter(&mut self, number: u32, stage: Stage, now: Instant) {
        if let Some(instance) = self.instances.get_mut(&number).filter(|found| found.stage != Stage::Ending) {
            (instance.stage, instance.since) = (stage, now);
        }
    }

    fn end(&mut self, number: u32) {
        if self.instances.get(&number).is_some_and(|instance| instance.wants_to_wake) {
            self.withdraw(number);
        }
        if let Some(instance) = self.instances.get_mut(&number)
            && !matches!(instance.stage, Stage::Ending | Stage::Starting | Stage::Waiting)
        {
            instance.stage = Stage::Ending;
            self.actions.push(Action::End { instance: number });
        } else if self.stage(number) == Some(Stage::Waiting) {
            self.withdraw(number);
        } else if let Some(instance) = self.instances.get_mut(&number) {
            instance.retiring = true;
        }
    }

    fn came_to_nothing(&mut self, why: String, now: Instant) {
        let pause = FIRST_PAUSE * 2u32.saturating_pow(self.failures.min(16));
        self.failures += 1;
        self.not_before = Some(now + pause.min(LONGEST_PAUSE));
        self.is_hopeless = false;
        self.problem = Some(why);
    }
}

/// How long an instance sleeps at these.
fn total(stages: &[SleepStage]) -> Duration {
    stages.iter().map(SleepStage::time).sum()
}
