//! What sleeps goes down level by level.

use super::*;

pub const ALL: [SleepStage; 3] = [
    SleepStage { level: Level::Gpu, ms: 20_000 },
    SleepStage { level: Level::Host, ms: 30_000 },
    SleepStage { level: Level::Disk, ms: 40_000 },
];

fn by_stages() -> Scenario {
    Scenario::running(Plan { stages: ALL.to_vec(), ..plan() }, 1)
}

/// It is asleep at the first level.
fn asleep() -> Scenario {
    let mut scenario = by_stages();
    assert_eq!(scenario.passes(10 * SECOND).then(), ["sleep 1 at Gpu"]);
    scenario.slept(true);
    scenario
}

impl Scenario {
    fn slept(&mut self, slept: bool) {
        self.policy.slept(1, slept, self.now);
    }

    /// Nothing happens before that time has passed, and the policy knows when that is.
    fn is_due_after(&mut self, time: Duration) -> Vec<String> {
        assert!(self.passes(time - SECOND).then().is_empty());
        assert_eq!(self.policy.next_tick(self.now), Some(self.now + SECOND));
        self.passes(SECOND).then()
    }
}

#[test]
fn each_level_has_an_interval_of_its_own_and_then_it_ends() {
    let mut scenario = asleep();
    assert_eq!(scenario.is_due_after(20 * SECOND), ["sleep 1"]);
    assert_eq!(scenario.policy.level(1), Some(Level::Gpu), "as long as it is not down");
    scenario.slept(true);
    assert_eq!(scenario.policy.level(1), Some(Level::Host));
    assert_eq!(scenario.is_due_after(30 * SECOND), ["sleep 1 at Disk"]);
    scenario.slept(true);
    assert_eq!(scenario.is_due_after(40 * SECOND), ["end 1"]);
}

#[test]
fn from_each_level_a_request_wakes_it_and_it_begins_anew() {
    for levels in 0..3 {
        let mut scenario = asleep();
        for stage in &ALL[..levels] {
            scenario.passes(stage.time());
            scenario.slept(true);
        }
        scenario.then();
        assert_eq!(scenario.policy.level(1), Some(ALL[levels].level));
        let request = scenario.asks();
        assert_eq!(scenario.then(), [format!("{request} to 1"), "wake 1".to_string()]);
        scenario.policy.woke(1, Ok(()), scenario.now);
        assert_eq!(scenario.policy.level(1), None);
        scenario.answered(1);
        assert_eq!(scenario.is_due_after(10 * SECOND), ["sleep 1 at Gpu"]);
    }
}

#[test]
fn who_comes_while_it_goes_down_calls_that_off_once() {
    let mut scenario = asleep();
    assert_eq!(scenario.passes(20 * SECOND).then(), ["sleep 1"]);
    scenario.ask(2);
    assert_eq!(scenario.then(), ["call off 1"], "and no other instance is started");
    scenario.slept(false);
    assert_eq!(scenario.then(), ["1 to 1", "2 to 1", "wake 1"]);
    // It may be too late for that.
    let mut scenario = asleep();
    scenario.passes(20 * SECOND);
    scenario.asks();
    assert_eq!(scenario.then(), ["sleep 1", "call off 1"]);
    scenario.slept(true);
    assert_eq!(scenario.then(), ["1 to 1", "wake 1"]);
}

#[test]
fn one_that_falls_asleep_has_nothing_to_call_off() {
    let mut scenario = by_stages();
    assert_eq!(scenario.passes(10 * SECOND).then(), ["sleep 1 at Gpu"]);
    scenario.asks();
    assert!(scenario.then().is_empty());
}

#[test]
fn one_that_cannot_go_down_tries_again_and_ends_when_all_would_be_over() {
    let mut scenario = asleep();
    assert_eq!(scenario.passes(20 * SECOND).then(), ["sleep 1"]);
    scenario.slept(false);
    assert_eq!((scenario.policy.level(1), scenario.policy.problem()), (Some(Level::Gpu), None));
    assert_eq!(scenario.is_due_after(STAYS), ["sleep 1"]);
    scenario.slept(false);
    assert_eq!(scenario.is_due_after(STAYS), ["sleep 1"]);
    scenario.slept(false);
    assert_eq!(scenario.is_due_after(10 * SECOND), ["end 1"]);
}

#[test]
fn one_that_cannot_sleep_ends_after_all_intervals() {
    let mut scenario = by_stages();
    scenario.passes(10 * SECOND);
    scenario.slept(false);
    scenario.then();
    assert_eq!(scenario.is_due_after(90 * SECOND), ["end 1"]);
}

#[test]
fn for_memory_it_goes_down_a_level_and_for_its_place_it_ends() {
    let mut scenario = by_stages();
    let idle = |scenario: &Scenario| scenario.policy.idle(scenario.now).remove(0);
    assert!(!idle(&scenario).keeps_memory && !idle(&scenario).ends);
    assert!(scenario.policy.demote(1, scenario.now));
    assert_eq!(scenario.then(), ["sleep 1"], "on the GPU it would keep its memory");
    let mut scenario = asleep();
    assert!(!idle(&scenario).keeps_memory && idle(&scenario).ends);
    assert!(scenario.policy.demote(1, scenario.now));
    assert_eq!(scenario.then(), ["sleep 1"]);
    scenario.slept(false);
    assert!(scenario.policy.demote(1, scenario.now));
    assert_eq!(scenario.then(), ["end 1"], "what cannot go down ends");
    let mut scenario = asleep();
    assert!(scenario.policy.dismiss(1, scenario.now));
    assert_eq!(scenario.then(), ["end 1"]);
    let mut scenario = by_stages();
    assert!(scenario.policy.dismiss(1, scenario.now));
    assert_eq!(scenario.then(), ["sleep 1"]);
}

#[test]
fn one_that_sleeps_on_the_gpu_alone_gives_its_context_back_and_then_ends() {
    let mut scenario = Scenario::running(Plan { stages: ALL[..1].to_vec(), ..plan() }, 1);
    assert!(scenario.policy.idle(scenario.now)[0].keeps_memory);
    assert!(scenario.policy.demote(1, scenario.now));
    assert_eq!(scenario.then(), ["sleep 1 at Gpu"]);
    scenario.slept(true);
    assert!(scenario.policy.demote(1, scenario.now));
    assert_eq!(scenario.then(), ["end 1"]);
}

#[test]
fn other_stages_hold_for_what_sleeps_already() {
    let mut scenario = asleep();
    scenario.policy.replan(Plan { stages: ALL[1..].to_vec(), ..plan() }, scenario.now);
    assert_eq!(
        scenario.is_due_after(30 * SECOND),
        ["sleep 1 at Disk"],
        "it has the time of the next level below"
    );
    scenario.slept(true);
    scenario.policy.replan(plan(), scenario.now);
    assert_eq!(scenario.is_due_after(100 * SECOND), ["end 1"]);
}

impl Scenario {
    fn kept(&self) -> Vec<u32> {
        self.policy.keep_contexts(self.now).collect()
    }
}

#[test]
fn a_context_is_kept_for_so_long_from_when_it_fell_asleep() {
    let mut scenario = by_stages();
    let with_context = Plan { context_ms: 25_000, ..scenario.policy.plan().clone() };
    scenario.policy.replan(with_context, scenario.now);
    assert_eq!(scenario.passes(10 * SECOND).then(), ["sleep 1 at Gpu"]);
    assert!(scenario.kept().is_empty(), "it does not sleep yet");
    scenario.slept(true);
    assert_eq!(scenario.kept(), [1]);
    assert_eq!(scenario.is_due_after(20 * SECOND), ["sleep 1"]);
    assert_eq!(scenario.kept(), [1], "also while it goes down");
    scenario.slept(true);
    // No level ends then, and yet the policy is to be asked.
    assert!(scenario.is_due_after(5 * SECOND).is_empty());
    assert!(scenario.kept().is_empty());
    assert_eq!(scenario.is_due_after(25 * SECOND), ["sleep 1 at Disk"]);
}

#[test]
fn one_that_wakes_has_it_until_it_is_awake_and_then_again() {
    let mut scenario = by_stages();
    let with_context = Plan { context_ms: 5_000, ..scenario.policy.plan().clone() };
    scenario.policy.replan(with_context, scenario.now);
    scenario.passes(10 * SECOND);
    scenario.slept(true);
    scenario.passes(4 * SECOND);
    scenario.asks();
    scenario.then();
    assert_eq!(scenario.kept(), [1]);
    scenario.policy.woke(1, Ok(()), scenario.now);
    assert!(scenario.kept().is_empty());
    scenario.answered(1);
    scenario.passes(10 * SECOND);
    scenario.slept(true);
    assert_eq!(scenario.kept(), [1]);
    scenario.policy.ended(1, "was killed".into(), scenario.now);
    assert!(scenario.kept().is_empty());
}

#[test]
fn without_an_interval_none_is_kept() {
    let scenario = asleep();
    assert!(scenario.kept().is_empty());
}
