//! Instances that nobody needs, and those that stay.

use super::*;

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
