//! The policy, driven by hand and at random. Time is given in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rekindle_protocol::daemon::Level;

use super::*;
use crate::plan::Need;

const SECOND: Duration = Duration::from_secs(1);

fn plan() -> Plan {
    Plan {
        min: 0,
        max: 3,
        concurrency: 2,
        idle_ms: 10_000,
        idle_end_ms: 100_000,
        queue: 4,
        timeout_ms: 60_000,
    }
}

fn source(image: &str) -> Source {
    Source {
        image: image.into(),
        variants: Vec::new(),
        id: image.into(),
        to: 80,
        ready: None,
        gpu: None,
        tenant: None,
        data: Vec::new(),
        level: Level::Host,
        need: Need::default(),
    }
}

/// A policy, and the time.
struct Story {
    policy: Policy,
    now: Instant,
    /// There is GPU memory for all that claim some.
    has_memory: bool,
    done: Vec<String>,
}

impl Story {
    fn of(plan: Plan) -> Story {
        let policy = Policy::new(plan, Some(source("one")));
        Story { policy, now: Instant::now(), has_memory: true, done: Vec::new() }
    }

    fn asks(&mut self) -> u64 {
        let request = self.policy.arrive(self.now, self.now + self.policy.plan().timeout(), None);
        self.grant();
        request
    }

    fn ask(&mut self, times: u32) {
        for _ in 0..times {
            self.asks();
        }
    }

    fn again(&mut self, avoid: u32) -> u64 {
        let request = self.policy.arrive(self.now, self.now + self.policy.plan().timeout(), Some(avoid));
        self.grant();
        request
    }

    fn passes(&mut self, time: Duration) -> &mut Story {
        self.now += time;
        self.policy.tick(self.now);
        self.grant();
        self
    }

    fn ready(&mut self, number: u32) -> &mut Story {
        self.policy.ready(number, self.now);
        self.grant();
        self
    }

    fn answered(&mut self, number: u32) -> &mut Story {
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
            Action::Withdraw { instance } => format!("withdraw {instance}"),
            Action::Start { instance, source, .. } => format!("start {instance} of {}", source.image),
            Action::Sleep { instance } => format!("sleep {instance}"),
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
    fn running(plan: Plan, count: u32) -> Story {
        let mut story = Story::of(Plan { min: count, ..plan.clone() });
        story.passes(SECOND);
        story.then();
        for number in 1..=count {
            story.ready(number);
        }
        story.policy.replan(plan, story.now);
        story.then();
        story
    }
}

#[test]
fn the_first_request_has_an_instance_started_and_waits_for_it() {
    let mut story = Story::of(plan());
    story.asks();
    assert_eq!(story.then(), ["start 1 of one"]);
    story.asks();
    assert!(story.then().is_empty(), "the first has room for two");
    assert_eq!(story.passes(SECOND).ready(1).then(), ["1 to 1", "2 to 1"]);
}

#[test]
fn more_start_when_those_that_start_cannot_take_all_that_wait() {
    let mut story = Story::of(Plan { queue: 100, ..plan() });
    for _ in 0..9 {
        story.asks();
    }
    assert_eq!(story.then(), ["start 1 of one", "start 2 of one", "start 3 of one"]);
    story.ready(2);
    assert_eq!(story.then(), ["1 to 2", "2 to 2"]);
    story.ready(1).ready(3);
    assert_eq!(story.then(), ["3 to 1", "4 to 1", "5 to 3", "6 to 3"]);
    assert_eq!(story.answered(3).then(), ["7 to 3"], "the first to come is the first to go");
}

#[test]
fn the_instance_with_the_fewest_requests_is_asked_and_of_equals_the_first() {
    let mut story = Story::running(plan(), 2);
    story.ask(3);
    assert_eq!(story.then(), ["1 to 1", "2 to 2", "3 to 1"]);
    story.answered(1).answered(1).asks();
    assert_eq!(story.then(), ["4 to 1"]);
}

#[test]
fn too_many_are_refused_at_once_and_those_that_wait_too_long_then() {
    let mut story = Story::of(Plan { queue: 1, ..plan() });
    story.asks();
    story.asks();
    assert_eq!(story.then(), ["start 1 of one", "2 full"]);
    let due = story.policy.next_tick(story.now).unwrap();
    assert_eq!(due - story.now, 10 * SECOND, "nothing is due before an instance could be idle");
    assert!(story.passes(59 * SECOND).then().is_empty());
    assert_eq!(story.passes(SECOND).then(), ["1 too long"]);
    assert!(story.ready(1).then().is_empty());
    assert_eq!(story.policy.counts(), Counts { served: 0, failed: 0, refused: 2 });
}

#[test]
fn an_idle_instance_sleeps_and_then_ends() {
    let mut story = Story::running(plan(), 1);
    assert!(story.passes(9 * SECOND).then().is_empty());
    assert_eq!(story.passes(SECOND).then(), ["sleep 1"]);
    story.asks();
    assert_eq!(story.then(), ["start 2 of one"], "one that falls asleep takes no request");
    let now = story.now;
    story.policy.slept(1, true, now);
    assert_eq!(story.then(), ["1 to 1", "wake 1"], "one that sleeps does, and wakes beside it");
    story.policy.woke(1, Ok(()), now);
    story.ready(2).answered(1).passes(10 * SECOND);
    assert_eq!(story.then(), ["sleep 2", "sleep 1"]);
    (1..=2).for_each(|number| story.policy.slept(number, true, story.now));
    assert!(story.passes(99 * SECOND).then().is_empty());
    assert_eq!(story.passes(SECOND).then(), ["end 2", "end 1"]);
    (1..=2).for_each(|number| story.policy.ended(number, String::new(), story.now));
    assert_eq!(story.policy.instances().count(), 0);
    assert_eq!(story.policy.problem(), None);
    assert_eq!(story.policy.next_tick(story.now), None);
}

#[test]
fn one_that_cannot_sleep_ends_after_both_intervals() {
    let mut story = Story::running(plan(), 1);
    assert_eq!(story.passes(10 * SECOND).then(), ["sleep 1"]);
    story.policy.slept(1, false, story.now);
    assert!(story.passes(99 * SECOND).then().is_empty());
    assert_eq!(story.passes(SECOND).then(), ["end 1"]);
}

#[test]
fn so_many_stay_awake() {
    let mut story = Story::of(Plan { min: 1, ..plan() });
    assert_eq!(story.passes(SECOND).then(), ["start 1 of one"]);
    assert!(story.ready(1).passes(1000 * SECOND).then().is_empty());
    story.policy.ended(1, "was killed".into(), story.now);
    assert_eq!(story.then(), Vec::<String>::new(), "one that ends before it served is no reason to hurry");
    assert_eq!(story.policy.problem(), Some("was killed"));
    assert_eq!(story.passes(SECOND).then(), ["start 2 of one"]);
}

#[test]
fn an_instance_that_ends_in_its_work_is_followed_at_once() {
    let mut story = Story::running(Plan { max: 1, ..plan() }, 1);
    story.asks();
    story.answered(1).asks();
    story.policy.ended(1, "was killed".into(), story.now);
    assert_eq!(story.then(), ["1 to 1", "2 to 1"]);
    story.again(1);
    assert_eq!(story.then(), ["start 2 of one"]);
    assert_eq!(story.ready(2).then(), ["3 to 2"]);
    // Who was sent to the first is done with it only now.
    story.answered(1).asks();
    assert_eq!(story.then(), ["4 to 2"]);
    story.asks();
    assert!(story.then().is_empty(), "the second has two");
}

#[test]
fn nobody_waits_for_what_cannot_be_had() {
    let mut story = Story::of(plan());
    let mut pause = 200;
    for number in 1..=5 {
        story.asks();
        assert_eq!(story.then(), [format!("start {number} of one")]);
        story.policy.not_started(number as u32, "no image".into(), story.now);
        assert_eq!(story.then(), [format!("{} none for {pause} ms: no image", 2 * number - 1)]);
        story.asks();
        assert_eq!(story.then(), [format!("{} none for {pause} ms: no image", 2 * number)]);
        story.passes(Duration::from_millis(pause));
        pause *= 2;
    }
    story.asks();
    story.asks();
    story.asks();
    assert_eq!(story.then(), ["start 6 of one"], "they are tried one by one");
    story.ready(6);
    assert_eq!(story.then(), ["11 to 6", "12 to 6", "start 7 of one"]);
    assert_eq!(story.answered(6).then(), ["13 to 6"]);
    assert_eq!(story.policy.problem(), None);
}

#[test]
fn a_request_goes_to_another_instance_than_the_one_that_failed_it() {
    let mut story = Story::running(Plan { max: 2, ..plan() }, 1);
    story.again(1);
    assert_eq!(story.then(), ["start 2 of one"]);
    story.asks();
    assert_eq!(story.then(), ["2 to 1"], "others go where it does not");
    assert_eq!(story.ready(2).then(), ["1 to 2"]);
    // Where there can be no other, it has to do.
    let mut story = Story::running(Plan { max: 1, ..plan() }, 1);
    story.again(1);
    assert_eq!(story.then(), ["1 to 1"]);
}

#[test]
fn one_that_lets_nobody_in_ends() {
    let mut story = Story::running(plan(), 1);
    story.asks();
    story.policy.unreachable(1, "refused".into(), story.now);
    story.policy.unreachable(1, "refused".into(), story.now);
    assert_eq!(story.then(), ["1 to 1", "end 1"]);
    story.again(1);
    assert!(story.then().is_empty(), "the next one may do better");
    assert_eq!(story.passes(SECOND).then(), ["start 2 of one"]);
}

#[test]
fn one_that_cannot_be_woken_ends() {
    let mut story = Story::running(plan(), 1);
    story.passes(10 * SECOND);
    story.policy.slept(1, true, story.now);
    story.asks();
    story.policy.woke(1, Err("no memory".into()), story.now);
    assert_eq!(story.then(), ["sleep 1", "1 to 1", "wake 1", "end 1"]);
    assert_eq!(story.policy.problem(), Some("no memory"));
    story.again(1);
    assert!(story.then().is_empty(), "a new one needs not what that could not have");
    assert_eq!(story.passes(SECOND).then(), ["start 2 of one"]);
}

#[test]
fn a_new_image_serves_before_the_old_one_goes() {
    let mut story = Story::running(Plan { max: 1, ..plan() }, 1);
    story.asks();
    story.then();
    assert!(story.policy.roll_out(source("two"), plan(), story.now));
    assert!(!story.policy.roll_out(source("three"), plan(), story.now), "one at a time");
    assert_eq!(story.then(), ["start 2 of two"]);
    story.asks();
    assert_eq!(story.then(), ["2 to 1"], "the old one serves meanwhile");
    assert_eq!(story.ready(2).then(), ["rolled out: Ok(())"]);
    story.asks();
    assert_eq!(story.then(), ["3 to 2"]);
    assert_eq!(story.answered(1).answered(1).then(), ["end 1"], "once it has answered");
    assert_eq!(story.policy.source(), Some(&source("two")));
}

#[test]
fn a_new_image_that_does_not_serve_changes_nothing() {
    let mut story = Story::running(plan(), 1);
    story.policy.roll_out(source("two"), Plan { max: 9, ..plan() }, story.now);
    story.grant();
    story.policy.not_started(2, "no port".into(), story.now);
    assert_eq!(story.then(), ["start 2 of two", "rolled out: Err(\"no port\")"]);
    assert_eq!((story.policy.source(), story.policy.plan().max), (Some(&source("one")), 3));
    story.asks();
    assert_eq!(story.then(), ["1 to 1"]);
    assert_eq!(story.policy.problem(), None);
}

#[test]
fn a_service_that_drains_answers_what_it_has() {
    let mut story = Story::running(Plan { max: 1, ..plan() }, 1);
    story.ask(3);
    story.policy.drain(story.now);
    story.asks();
    assert_eq!(story.then(), ["1 to 1", "2 to 1", "4 draining"]);
    assert_eq!(story.answered(1).then(), ["3 to 1"]);
    assert_eq!(story.answered(1).answered(1).then(), ["end 1"]);
    assert!(!story.policy.is_drained());
    story.policy.ended(1, String::new(), story.now);
    assert!(story.policy.is_drained());
    story.policy.replan(plan(), story.now);
    story.asks();
    assert_eq!(story.then(), ["start 2 of one"]);
}

#[test]
fn fewer_instances_are_those_that_sleep_and_then_those_with_least_to_do() {
    let mut story = Story::running(plan(), 3);
    story.asks();
    story.passes(10 * SECOND);
    assert_eq!(story.then(), ["1 to 1", "sleep 3", "sleep 2"]);
    (2..=3).for_each(|number| story.policy.slept(number, true, story.now));
    story.policy.replan(Plan { max: 1, ..plan() }, story.now);
    assert_eq!(story.then(), ["end 3", "end 2"]);
}

#[test]
fn those_of_an_earlier_daemon_go_on_and_those_of_another_image_end() {
    let mut story = Story::of(plan());
    let now = story.now;
    let one = source("one");
    let mut adopt =
        |seat, is_asleep, is_current| story.policy.adopt(seat, is_asleep, (&one, is_current), now);
    assert_eq!([adopt(1, false, true), adopt(3, true, true), adopt(4, false, false)], [1, 2, 3]);
    assert_eq!(story.passes(SECOND).then(), ["end 3"]);
    story.ask(5);
    assert_eq!(story.then(), ["1 to 1", "2 to 1", "3 to 2", "wake 2", "4 to 2", "start 4 of one"]);
    let seats: Vec<u32> = story.policy.instances().map(|(_, seat, ..)| seat).collect();
    assert_eq!(seats, [1, 3, 4, 2]);
}

#[test]
fn one_without_gpu_memory_waits_and_its_requests_with_it() {
    let mut story = Story { has_memory: false, ..Story::of(plan()) };
    story.asks();
    assert_eq!(story.then(), ["claim 1"]);
    story.policy.tell_shortage(1, "it needs 5 MB".into());
    story.ask(2);
    assert_eq!(story.then(), ["claim 2"], "as many wait as are needed");
    assert_eq!(story.policy.problem(), Some("it needs 5 MB"));
    story.policy.gone(3, story.now);
    assert_eq!(story.then(), ["withdraw 2"], "and no more than that");
    assert_eq!(story.passes(60 * SECOND).then(), ["1 too long", "2 too long", "withdraw 1"]);
    assert_eq!((story.policy.instances().count(), story.policy.problem()), (0, None));
    assert!(!story.policy.granted(1, story.now), "nobody wants it any more");
    story.has_memory = true;
    story.asks();
    assert_eq!(story.then(), ["start 3 of one"]);
    story.policy.found_full(3, story.now);
    assert!(story.then().is_empty());
    assert!(story.policy.granted(3, story.now));
    assert_eq!(story.then(), ["start 3 of one"], "once there is memory");
}

#[test]
fn one_that_sleeps_is_sent_nothing_before_there_is_memory_to_wake_it() {
    let mut story = Story::running(Plan { max: 1, ..plan() }, 1);
    story.passes(10 * SECOND);
    story.policy.slept(1, true, story.now);
    story.has_memory = false;
    story.asks();
    assert_eq!(story.then(), ["sleep 1", "claim 1"]);
    assert!(story.policy.granted(1, story.now));
    assert_eq!(story.then(), ["1 to 1", "wake 1"]);
}

#[test]
fn who_has_no_request_and_need_not_stay_awake_goes_down_for_others() {
    let mut story = Story::running(Plan { min: 1, ..plan() }, 3);
    let idle =
        |story: &Story| story.policy.idle(story.now).iter().map(|one| one.instance).collect::<Vec<_>>();
    story.asks();
    assert_eq!(story.then(), ["1 to 1"]);
    assert_eq!(idle(&story), [2, 3], "the first has a request, and is the one that stays");
    assert!(!story.policy.demote(1, story.now));
    assert!(story.policy.demote(2, story.now));
    assert_eq!(story.passes(SECOND).then(), ["sleep 2"]);
    story.policy.slept(2, true, story.now);
    assert_eq!(idle(&story), [3, 2]);
    assert!(story.policy.demote(2, story.now));
    assert_eq!(story.then(), ["end 2"], "what sleeps ends");
    story.policy.ended(2, String::new(), story.now);
    assert!(story.policy.demote(3, story.now));
    story.policy.slept(3, false, story.now);
    assert_eq!(story.then(), ["sleep 3"]);
    assert!(story.policy.demote(3, story.now));
    assert_eq!(story.then(), ["end 3"], "what cannot sleep ends, too");
    story.policy.ended(3, String::new(), story.now);
    story.answered(1);
    assert!(idle(&story).is_empty(), "it is to stay awake");
}

#[test]
fn a_new_image_that_gets_no_memory_in_time_changes_nothing() {
    let mut story = Story::running(plan(), 1);
    story.has_memory = false;
    assert!(story.policy.roll_out(source("two"), plan(), story.now));
    assert_eq!(story.then(), ["claim 2"]);
    story.policy.tell_shortage(2, "it needs 5 MB".into());
    assert!(story.passes(9 * SECOND).then().is_empty());
    story.asks();
    story.passes(51 * SECOND);
    let failed = "rolled out: Err(\"no instance of it could be started in time: it needs 5 MB\")";
    assert_eq!(story.then(), ["1 to 1", failed, "withdraw 2"]);
    assert_eq!(story.policy.source(), Some(&source("one")));
}

#[derive(Clone, Debug)]
enum Step {
    Arrive,
    Again(u32),
    Gone(usize),
    Done(usize, bool),
    /// The n-th of what is under way comes to its end, well or not.
    Over(usize, bool),
    /// There is GPU memory for the n-th of those that claim some.
    Grant(usize),
    /// The n-th that is started finds its GPU full.
    Full(usize),
    /// Others need the memory of the n-th that nobody needs.
    Demote(usize),
    Ended(usize),
    Unreachable(usize),
    Pass(u64),
    RollOut,
    Replan(u32, u32),
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Arrive),
        1 => (1..5u32).prop_map(Step::Again),
        2 => any::<usize>().prop_map(Step::Gone),
        8 => (any::<usize>(), any::<bool>()).prop_map(|(which, well)| Step::Done(which, well)),
        8 => any::<usize>().prop_map(Step::Grant),
        1 => any::<usize>().prop_map(Step::Full),
        1 => any::<usize>().prop_map(Step::Demote),
        6 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(which, well)| Step::Over(which, well)),
        1 => any::<usize>().prop_map(Step::Ended),
        1 => any::<usize>().prop_map(Step::Unreachable),
        4 => (1..40_000u64).prop_map(Step::Pass),
        1 => Just(Step::RollOut),
        1 => (0..3u32, 1..5u32).prop_map(|(min, max)| Step::Replan(min, max)),
        1 => Just(Step::Drain),
    ]
}

/// What the policy was told and has wanted, as the world beside it knows it.
#[derive(Default)]
struct World {
    waiting: BTreeSet<u64>,
    /// Requests at instances.
    sent: Vec<u32>,
    /// What is under way with each instance.
    busy: BTreeMap<u32, &'static str>,
    /// Those that claim GPU memory.
    claims: BTreeSet<u32>,
    /// Instances that listen, and whether they sleep.
    there: BTreeMap<u32, bool>,
    rollouts: u32,
    max: u32,
}

impl World {
    fn follow(&mut self, policy: &mut Policy) -> Result<(), TestCaseError> {
        for action in policy.take() {
            match action {
                Action::Claim { instance, .. } => {
                    prop_assert!(self.claims.insert(instance), "{instance} claims twice");
                    prop_assert!(!self.busy.contains_key(&instance));
                }
                Action::Withdraw { instance } => {
                    prop_assert!(self.claims.remove(&instance), "{instance} claims nothing");
                }
                Action::Start { instance, .. } => {
                    prop_assert!(!self.there.contains_key(&instance), "{instance} is there");
                    prop_assert_eq!(self.busy.insert(instance, "start"), None);
                }
                Action::Sleep { instance } => {
                    prop_assert_eq!(self.there.get(&instance), Some(&false));
                    prop_assert!(!self.sent.contains(&instance), "it has requests");
                    prop_assert_eq!(self.busy.insert(instance, "sleep"), None);
                }
                Action::Wake { instance } => {
                    prop_assert_eq!(self.there.get(&instance), Some(&true));
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
        let seats: BTreeSet<u32> = policy.instances().map(|(_, seat, ..)| seat).collect();
        prop_assert_eq!(seats.len(), policy.instances.len());
        prop_assert_eq!(policy.queued(), self.waiting.len());
        Ok(())
    }

    /// What is under way with the instance has come to its end.
    fn over(&mut self, policy: &mut Policy, number: u32, well: bool, now: Instant) {
        match (self.busy.remove(&number), well) {
            (Some("start"), true) => {
                self.there.insert(number, false);
                policy.ready(number, now);
            }
            (Some("start"), false) => policy.not_started(number, "failed".into(), now),
            (Some("sleep"), _) => {
                self.there.insert(number, well);
                policy.slept(number, well, now);
            }
            (Some("wake"), _) => {
                self.there.insert(number, false);
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
        let mut policy = Policy::new(plan(), Some(source("one")));
        let mut world = World { max: plan().max, ..World::default() };
        for step in steps {
            match step {
                Step::Arrive | Step::Again(_) => {
                    let avoid = if let Step::Again(avoid) = step { Some(avoid) } else { None };
                    let request = policy.arrive(now, now + policy.plan().timeout(), avoid);
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
                Step::Pass(time) => {
                    now += Duration::from_millis(time);
                    policy.tick(now);
                }
                Step::RollOut => world.rollouts += u32::from(policy.roll_out(source("two"), plan(), now)),
                Step::Replan(min, max) => {
                    world.max = world.max.max(max);
                    policy.replan(Plan { min: min.min(max), max, ..plan() }, now);
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
