//! Which instance has which request, and who is refused.

use super::*;

#[test]
fn the_first_request_has_an_instance_started_and_waits_for_it() {
    let mut scenario = Scenario::of(plan());
    scenario.asks();
    assert_eq!(scenario.then(), ["start 1 of one"]);
    scenario.asks();
    assert!(scenario.then().is_empty(), "the first has room for two");
    assert_eq!(scenario.passes(SECOND).ready(1).then(), ["1 to 1", "2 to 1"]);
}

#[test]
fn more_start_when_those_that_start_cannot_take_all_that_wait() {
    let mut scenario = Scenario::of(Plan { queue: 100, ..plan() });
    for _ in 0..9 {
        scenario.asks();
    }
    assert_eq!(scenario.then(), ["start 1 of one", "start 2 of one", "start 3 of one"]);
    scenario.ready(2);
    assert_eq!(scenario.then(), ["1 to 2", "2 to 2"]);
    scenario.ready(1).ready(3);
    assert_eq!(scenario.then(), ["3 to 1", "4 to 1", "5 to 3", "6 to 3"]);
    assert_eq!(scenario.answered(3).then(), ["7 to 3"], "the first to come is the first to go");
}

#[test]
fn the_instance_with_the_fewest_requests_is_asked_and_of_equals_the_first() {
    let mut scenario = Scenario::running(plan(), 2);
    scenario.ask(3);
    assert_eq!(scenario.then(), ["1 to 1", "2 to 2", "3 to 1"]);
    scenario.answered(1).answered(1).asks();
    assert_eq!(scenario.then(), ["4 to 1"]);
}

#[test]
fn too_many_are_refused_at_once_and_those_that_wait_too_long_then() {
    let mut scenario = Scenario::of(Plan { queue: 1, ..plan() });
    scenario.asks();
    scenario.asks();
    assert_eq!(scenario.then(), ["start 1 of one", "2 full"]);
    let due = scenario.policy.next_tick(scenario.now).unwrap();
    assert_eq!(due - scenario.now, 10 * SECOND, "nothing is due before an instance could be idle");
    assert!(scenario.passes(59 * SECOND).then().is_empty());
    assert_eq!(scenario.passes(SECOND).then(), ["1 too long"]);
    assert!(scenario.ready(1).then().is_empty());
    assert_eq!(scenario.policy.counts(), Counts { served: 0, failed: 0, refused: 2 });
}

#[test]
fn what_does_not_count_is_answered_all_the_same() {
    let mut scenario = Scenario::of(Plan { queue: 1, max: 1, ..plan() });
    let (now, deadline) = (scenario.now, scenario.now + 60 * SECOND);
    for request in 1..=2 {
        assert_eq!(scenario.policy.arrive(now, deadline, Coming::Anew, (false, None)), request);
        scenario.grant();
    }
    assert_eq!(scenario.then(), ["start 1 of one", "2 full"]);
    assert_eq!(scenario.ready(1).then(), ["1 to 1"]);
    scenario.policy.done(1, Outcome::Unheard, now);
    assert_eq!(scenario.policy.counts(), Counts::default());
    assert_eq!(scenario.policy.rate.of(now), 0.0);
}
