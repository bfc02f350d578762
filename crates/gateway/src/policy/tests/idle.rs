//! Instances that nobody needs, and those that stay.

use super::*;

#[test]
fn an_idle_instance_sleeps_and_then_ends() {
    let mut scenario = Scenario::running(plan(), 1);
    assert!(scenario.passes(9 * SECOND).then().is_empty());
    assert_eq!(scenario.passes(SECOND).then(), ["sleep 1"]);
    scenario.ask(3);
    assert_eq!(scenario.then(), ["start 2 of one"], "one that falls asleep will have two of three");
    let now = scenario.now;
    scenario.policy.slept(1, true, now);
    assert_eq!(scenario.then(), ["1 to 1", "2 to 1", "wake 1"], "one that sleeps wakes beside its requests");
    scenario.policy.woke(1, Ok(()), now);
    scenario.ready(2).answered(1).answered(1).answered(2).passes(10 * SECOND);
    assert_eq!(scenario.then(), ["3 to 2", "sleep 2", "sleep 1"]);
    (1..=2).for_each(|number| scenario.policy.slept(number, true, scenario.now));
    assert!(scenario.passes(99 * SECOND).then().is_empty());
    assert_eq!(scenario.passes(SECOND).then(), ["end 2", "end 1"]);
    (1..=2).for_each(|number| scenario.policy.ended(number, String::new(), scenario.now));
    assert_eq!(scenario.policy.instances().count(), 0);
    assert_eq!(scenario.policy.problem(), None);
    assert_eq!(scenario.policy.next_tick(scenario.now), None);
}

#[test]
fn one_that_cannot_sleep_ends_after_both_intervals() {
    let mut scenario = Scenario::running(plan(), 1);
    assert_eq!(scenario.passes(10 * SECOND).then(), ["sleep 1"]);
    scenario.policy.slept(1, false, scenario.now);
    assert!(scenario.passes(99 * SECOND).then().is_empty());
    assert_eq!(scenario.passes(SECOND).then(), ["end 1"]);
}

#[test]
fn so_many_stay_awake() {
    let mut scenario = Scenario::of(Plan { min: 1, ..plan() });
    assert_eq!(scenario.passes(SECOND).then(), ["start 1 of one"]);
    assert!(scenario.ready(1).passes(1000 * SECOND).then().is_empty());
    scenario.policy.ended(1, "was killed".into(), scenario.now);
    assert_eq!(scenario.then(), Vec::<String>::new(), "one that ends before it served is no reason to hurry");
    assert_eq!(scenario.policy.problem(), Some("was killed"));
    assert_eq!(scenario.passes(SECOND).then(), ["start 2 of one"]);
}

#[test]
fn fewer_instances_are_those_that_sleep_and_then_those_with_least_to_do() {
    let mut scenario = Scenario::running(plan(), 3);
    scenario.asks();
    scenario.passes(10 * SECOND);
    assert_eq!(scenario.then(), ["1 to 1", "sleep 3", "sleep 2"]);
    (2..=3).for_each(|number| scenario.policy.slept(number, true, scenario.now));
    scenario.policy.replan(Plan { max: 1, ..plan() }, scenario.now);
    assert_eq!(scenario.then(), ["end 3", "end 2"]);
}

#[test]
fn those_of_an_earlier_daemon_go_on_and_those_of_another_image_end() {
    let mut scenario = Scenario::of(plan());
    let now = scenario.now;
    let one = source("one");
    let mut adopt = |slot, asleep, is_current| scenario.policy.adopt(slot, asleep, (&one, is_current), now);
    let asleep = Some(Level::Host);
    assert_eq!([adopt(1, None, true), adopt(3, asleep, true), adopt(4, None, false)], [1, 2, 3]);
    assert_eq!(scenario.passes(SECOND).then(), ["end 3"]);
    scenario.ask(5);
    assert_eq!(scenario.then(), ["1 to 1", "2 to 1", "3 to 2", "wake 2", "4 to 2", "start 4 of one"]);
    let slots: Vec<u32> = scenario.policy.instances().map(|(_, slot, ..)| slot).collect();
    assert_eq!(slots, [1, 3, 4, 2]);
}

#[test]
fn who_comes_while_an_instance_falls_asleep_wakes_it_and_starts_no_other() {
    let mut scenario = Scenario::running(plan(), 1);
    assert_eq!(scenario.passes(10 * SECOND).then(), ["sleep 1"]);
    scenario.ask(2);
    assert!(scenario.passes(SECOND).then().is_empty());
    scenario.policy.slept(1, true, scenario.now);
    assert_eq!(scenario.then(), ["1 to 1", "2 to 1", "wake 1"]);
    // One that cannot sleep has them at once.
    let mut scenario = Scenario::running(plan(), 1);
    assert_eq!(scenario.passes(10 * SECOND).then(), ["sleep 1"]);
    scenario.asks();
    scenario.policy.slept(1, false, scenario.now);
    assert_eq!(scenario.then(), ["1 to 1"]);
    // One that has failed a request is not waited for by that.
    let mut scenario = Scenario::running(plan(), 1);
    assert_eq!(scenario.passes(10 * SECOND).then(), ["sleep 1"]);
    scenario.again(1);
    assert_eq!(scenario.then(), ["start 2 of one"]);
}
