//! Which instance has which request, and who is refused.

use super::*;

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
