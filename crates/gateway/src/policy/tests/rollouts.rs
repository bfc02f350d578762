//! New images, and the end of a service.

use super::*;

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
