//! Whatever happens, in any order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Arrive,
    Again(Option<u32>),
    Gone(usize),
    Done(usize, bool),
    /// The n-th of what is under way comes to its end, well or not.
    Over(usize, bool),
    /// There is GPU memory for the n-th of those that claim some.
    Grant(usize),
    /// The n-th that is started finds its GPU full.
    Full(usize),
    /// Others need the memory of the n-th that nobody needs, or its place.
    Demote(usize),
    Dismiss(usize),
    /// So much room the two GPUs have.
    Rooms(Room, Room),
    /// So much those find where they are that sleep.
    RoomsToWake(Room),
    Ended(usize),
    Unreachable(usize),
    Faulted(usize),
    Pass(u64),
    RollOut,
    Replan(u32, u32, usize),
    Drain,
}

fn room() -> impl Strategy<Value = Room> {
    prop::sample::select(vec![Room::AtOnce, Room::OnceOthersGo, Room::Never])
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Arrive),
        1 => prop::option::of(1..5u32).prop_map(Step::Again),
        2 => any::<usize>().prop_map(Step::Gone),
        8 => (any::<usize>(), any::<bool>()).prop_map(|(which, well)| Step::Done(which, well)),
        8 => any::<usize>().prop_map(Step::Grant),
        1 => any::<usize>().prop_map(Step::Full),
        1 => any::<usize>().prop_map(Step::Demote),
        1 => any::<usize>().prop_map(Step::Dismiss),
        6 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(which, well)| Step::Over(which, well)),
        1 => (room(), room()).prop_map(|(a, b)| Step::Rooms(a, b)),
        1 => room().prop_map(Step::RoomsToWake),
        1 => any::<usize>().prop_map(Step::Ended),
        1 => any::<usize>().prop_map(Step::Unreachable),
        1 => any::<usize>().prop_map(Step::Faulted),
        4 => (1..40_000u64).prop_map(Step::Pass),
        1 => Just(Step::RollOut),
        1 => (0..3u32, 1..5u32, 0..4usize).prop_map(|(min, max, stages)| Step::Replan(min, max, stages)),
        1 => Just(Step::Drain),
    ]
}

/// What the policy was told and has wanted, as the world beside it knows it.
#[derive(Default)]
struct PolicyModel {
    waiting: BTreeSet<u64>,
    /// Requests at instances.
    sent: Vec<u32>,
    /// What is under way with each instance.
    busy: BTreeMap<u32, &'static str>,
    /// Those that claim GPU memory.
    claims: BTreeSet<u32>,
    /// Instances that listen, and where they sleep if they do.
    there: BTreeMap<u32, Option<Level>>,
    /// Where those go that fall asleep.
    goes_to: BTreeMap<u32, Level>,
    rollouts: u32,
    max: u32,
}

impl PolicyModel {
    fn follow(&mut self, policy: &mut Policy) -> Result<(), TestCaseError> {
        for action in policy.take() {
            match action {
                Action::Claim { instance, .. } => {
                    prop_assert!(self.claims.insert(instance), "{instance} claims twice");
                    prop_assert!(!self.busy.contains_key(&instance));
                }
                Action::Move { instance, .. } => {
                    prop_assert!(self.claims.contains(&instance), "{instance} claims nothing");
                }
                Action::Withdraw { instance } => {
                    prop_assert!(self.claims.remove(&instance), "{instance} claims nothing");
                }
                Action::Start { instance, .. } => {
                    prop_assert!(!self.there.contains_key(&instance), "{instance} is there");
                    prop_assert_eq!(self.busy.insert(instance, "start"), None);
                }
                Action::Sleep { instance, level } => {
                    let from = self.there.get(&instance).copied();
                    prop_assert!(from.is_some_and(|from| from < Some(level)), "from {from:?} to {level:?}");
                    self.goes_to.insert(instance, level);
                    prop_assert!(!self.sent.contains(&instance), "it has requests");
                    prop_assert_eq!(self.busy.insert(instance, "sleep"), None);
                }
                Action::CallOff { instance } => {
                    prop_assert_eq!(self.busy.get(&instance), Some(&"sleep"));
                    prop_assert!(self.there.get(&instance).copied().flatten().is_some());
                }
                Action::Wake { instance } => {
                    prop_assert!(self.there.get(&instance).copied().flatten().is_some());
                    prop_assert_eq!(self.busy.insert(instance, "wake"), None);
                }
                Action::End { instance } => {
                    prop_assert!(self.there.contains_key(&instance));
                    self.busy.insert(instance, "end");
                }
                Action::Send { request, instance } => {
                    prop_assert!(self.waiting.remove(&request), "{request} was told twice");
                    prop_assert!(self.there.contains_key(&instance), "{instance} does not listen");
                    let busy = self.busy.get(&instance).copied();
                    prop_assert!(matches!(busy, None | Some("wake")), "{instance} has to {busy:?}");
                    self.sent.push(instance);
                    let count = self.sent.iter().filter(|other| **other == instance).count();
                    prop_assert!(count <= policy.plan().concurrency as usize);
                }
                Action::Refuse { request, .. } => {
                    prop_assert!(self.waiting.remove(&request), "{request} was told twice");
                }
                Action::RolledOut(_) => self.rollouts -= 1,
            }
        }
        // Those of an old image, and those that are too many by now, have requests yet or something under way.
        let waits = |number: &u32| self.claims.contains(number);
        let held =
            |number: &u32| self.sent.contains(number) || self.busy.contains_key(number) || waits(number);
        let resting = policy.instances.keys().filter(|number| !held(number)).count();
        prop_assert!(resting <= self.max as usize + 1);
        let slots: BTreeSet<u32> = policy.instances().map(|(_, slot, ..)| slot).collect();
        prop_assert_eq!(slots.len(), policy.instances.len());
        prop_assert_eq!(policy.queued(), self.waiting.len());
        Ok(())
    }

    /// What is under way with the instance has come to its end.
    fn over(&mut self, policy: &mut Policy, number: u32, well: bool, now: Instant) {
        match (self.busy.remove(&number), well) {
            (Some("start"), true) => {
                self.there.insert(number, None);
                policy.ready(number, now);
            }
            (Some("start"), false) => policy.not_started(number, "failed".into(), now),
            (Some("sleep"), _) => {
                let level = self.goes_to.remove(&number).filter(|_| well);
                self.there.entry(number).and_modify(|from| *from = level.or(*from));
                policy.slept(number, well, now);
            }
            (Some("wake"), _) => {
                self.there.insert(number, None);
                policy.woke(number, if well { Ok(()) } else { Err("failed".into()) }, now);
            }
            (Some("end"), _) => self.gone(policy, number, now),
            _ => {}
        }
    }

    fn gone(&mut self, policy: &mut Policy, number: u32, now: Instant) {
        self.there.remove(&number);
        self.busy.remove(&number);
        self.claims.remove(&number);
        policy.ended(number, "ended".into(), now);
    }
}

fn nth<T: Copy>(all: impl IntoIterator<Item = T>, which: usize) -> Option<T> {
    let all: Vec<T> = all.into_iter().collect();
    (!all.is_empty()).then(|| all[which % all.len()])
}

proptest! {
    #[test]
    fn every_request_is_told_once_and_no_instance_has_too_many(steps in prop::collection::vec(step(), 1..200)) {
        let mut now = Instant::now();
        let place = |gpu: &str| crate::plan::Place { gpu: gpu.into(), counted: gpu.into() };
        let gpus = Source { gpus: vec![place("a"), place("b")], ..source("one") };
        let mut policy = Policy::new(plan(), Some(gpus));
        let mut world = PolicyModel { max: plan().max, ..PolicyModel::default() };
        for step in steps {
            match step {
                Step::Arrive | Step::Again(_) => {
                    let coming = match step {
                        Step::Again(avoid) => Coming::Again { avoid },
                        _ => Coming::Anew,
                    };
                    let gpu = ["a", "b", "c"].get(world.waiting.len() % 4);
                    let near = gpu.map(|gpu| Near { gpu: gpu.to_string(), has_room: world.busy.len().is_multiple_of(2) });
                    let request = policy.arrive(now, now + policy.plan().timeout(), coming, (true, near));
                    world.waiting.insert(request);
                }
                Step::Gone(which) => {
                    if let Some(request) = nth(world.waiting.iter().copied(), which) {
                        world.waiting.remove(&request);
                        policy.gone(request, now);
                    }
                }
                Step::Done(which, well) => {
                    if !world.sent.is_empty() {
                        let which = which % world.sent.len();
                        let number = world.sent.swap_remove(which);
                        let outcome = if well { Outcome::Answered } else { Outcome::Broken };
                        policy.done(number, outcome, now);
                    }
                }
                Step::Over(which, well) => {
                    if let Some(number) = nth(world.busy.keys().copied(), which) {
                        world.over(&mut policy, number, well, now);
                    }
                }
                Step::Grant(which) => {
                    if let Some(number) = nth(world.claims.iter().copied(), which) {
                        world.claims.remove(&number);
                        prop_assert!(policy.granted(number, now));
                    }
                }
                Step::Full(which) => {
                    let starting = world.busy.iter().filter(|(_, what)| **what == "start");
                    if let Some(number) = nth(starting.map(|(number, _)| *number), which) {
                        world.busy.remove(&number);
                        world.claims.insert(number);
                        policy.found_full(number, now);
                    }
                }
                Step::Demote(which) => {
                    if let Some(idle) = nth(policy.idle(now).iter().map(|idle| idle.instance), which) {
                        prop_assert!(policy.demote(idle, now));
                    }
                }
                Step::Dismiss(which) => {
                    if let Some(idle) = nth(policy.idle(now).iter().map(|idle| idle.instance), which) {
                        prop_assert!(policy.dismiss(idle, now));
                    }
                }
                Step::Rooms(a, b) => {
                    policy.note_rooms([("a".to_string(), a), ("b".to_string(), b)].into());
                    policy.tick(now);
                }
                Step::RoomsToWake(room) => {
                    let rooms = policy.asleep().map(|(number, _)| (number, room)).collect();
                    policy.note_rooms_to_wake(rooms);
                    policy.tick(now);
                }
                Step::Ended(which) => {
                    if let Some(number) = nth(world.there.keys().copied(), which) {
                        world.gone(&mut policy, number, now);
                    }
                }
                Step::Unreachable(which) => {
                    if let Some(number) = nth(world.there.keys().copied(), which) {
                        policy.unreachable(number, "refused".into(), now);
                    }
                }
                Step::Faulted(which) => {
                    if let Some(number) = nth(world.there.keys().copied(), which) {
                        policy.faulted(number, "fault".into(), now);
                    }
                }
                Step::Pass(time) => {
                    now += Duration::from_millis(time);
                    policy.tick(now);
                }
                Step::RollOut => world.rollouts += u32::from(policy.roll_out(source("two"), plan(), now)),
                Step::Replan(min, max, stages) => {
                    world.max = world.max.max(max);
                    let stages = stages::ALL[..stages].to_vec();
                    policy.replan(Plan { min: min.min(max), max, stages, ..plan() }, now);
                }
                Step::Drain => policy.drain(now),
            }
            world.follow(&mut policy)?;
        }
        // Whatever has happened, it can be brought to rest.
        for _ in 0..100 {
            while let Some(number) = world.busy.keys().next().copied() {
                world.over(&mut policy, number, true, now);
                world.follow(&mut policy)?;
            }
            while let Some(number) = world.claims.pop_first() {
                prop_assert!(policy.granted(number, now));
                world.follow(&mut policy)?;
            }
            while let Some(number) = world.sent.pop() {
                policy.done(number, Outcome::Answered, now);
                world.follow(&mut policy)?;
            }
            policy.drain(now);
            world.follow(&mut policy)?;
            now += SECOND;
        }
        prop_assert!(policy.is_drained(), "{:?}, {:?}", policy.instances().collect::<Vec<_>>(), world.waiting);
        prop_assert_eq!(world.rollouts, 0);
        prop_assert!(world.waiting.is_empty());
    }
}
