//! New images, and the end of a service.

use super::*;

#[test]
fn a_new_image_serves_before_the_old_one_goes() {
    let mut scenario = Scenario::running(Plan { max: 1, ..plan() }, 1);
    scenario.asks();
    scenario.then();
    assert!(scenario.policy.roll_out(source("two"), plan(), scenario.now));
    assert!(!scenario.policy.roll_out(source("three"), plan(), scenario.now), "one at a time");
    assert_eq!(scenario.then(), ["start 2 of two"]);
    scenario.asks();
    assert_eq!(scenario.then(), ["2 to 1"], "the old one serves meanwhile");
    assert_eq!(scenario.ready(2).then(), ["rolled out: Ok(())"]);
    scenario.asks();
    assert_eq!(scenario.then(), ["3 to 2"]);
    assert_eq!(scenario.answered(1).answered(1).then(), ["end 1"], "once it has answered");
    assert_eq!(scenario.policy.source(), Some(&source("two")));
}

#[test]
fn a_new_image_that_does_not_serve_changes_nothing() {
    let mut scenario = Scenario::running(plan(), 1);
    scenario.policy.roll_out(source("two"), Plan { max: 9, ..plan() }, scenario.now);
    scenario.grant();
    scenario.policy.not_started(2, "no port".into(), scenario.now);
    assert_eq!(scenario.then(), ["start 2 of two", "rolled out: Err(\"no port\")"]);
    assert_eq!((scenario.policy.source(), scenario.policy.plan().max), (Some(&source("one")), 3));
    scenario.asks();
    assert_eq!(scenario.then(), ["1 to 1"]);
    assert_eq!(scenario.policy.problem(), None);
}

#[test]
fn a_service_that_drains_answers_what_it_has() {
    let mut scenario = Scenario::running(Plan { max: 1, ..plan() }, 1);
    scenario.ask(3);
    scenario.policy.drain(scenario.now);
    scenario.asks();
    assert_eq!(scenario.then(), ["1 to 1", "2 to 1", "4 draining"]);
    assert_eq!(scenario.answered(1).then(), ["3 to 1"]);
    assert_eq!(scenario.answered(1).answered(1).then(), ["end 1"]);
    assert!(!scenario.policy.is_drained());
    scenario.policy.ended(1, String::new(), scenario.now);
    assert!(scenario.policy.is_drained());
    scenario.policy.replan(plan(), scenario.now);
    scenario.asks();
    assert_eq!(scenario.then(), ["start 2 of one"]);
}

#[test]
fn a_service_that_ends_all_instances_starts_none_for_what_these_had() {
    let mut scenario = Scenario::running(Plan { max: 1, ..plan() }, 1);
    scenario.asks();
    scenario.policy.end_all(scenario.now);
    assert_eq!(scenario.then(), ["1 to 1", "end 1"]);
    scenario.policy.done(1, Outcome::Unheard, scenario.now);
    scenario.again(1);
    scenario.policy.ended(1, String::new(), scenario.now);
    assert_eq!(scenario.then(), ["2 draining"]);
    assert!(scenario.policy.is_drained());
    scenario.policy.replan(plan(), scenario.now);
    scenario.asks();
    assert_eq!(scenario.then(), ["start 2 of one"]);
}
