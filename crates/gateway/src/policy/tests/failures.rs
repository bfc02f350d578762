//! Instances that fail, and what becomes of their requests.

use super::*;

#[test]
fn an_instance_that_ends_in_its_work_is_followed_at_once() {
    let mut scenario = Scenario::running(Plan { max: 1, ..plan() }, 1);
    scenario.asks();
    scenario.answered(1).asks();
    scenario.policy.ended(1, "was killed".into(), scenario.now);
    assert_eq!(scenario.then(), ["1 to 1", "2 to 1"]);
    scenario.again(1);
    assert_eq!(scenario.then(), ["start 2 of one"]);
    assert_eq!(scenario.ready(2).then(), ["3 to 2"]);
    // Who was sent to the first is done with it only now.
    scenario.answered(1).asks();
    assert_eq!(scenario.then(), ["4 to 2"]);
    scenario.asks();
    assert!(scenario.then().is_empty(), "the second has two");
}

#[test]
fn nobody_waits_for_what_cannot_be_had() {
    let mut scenario = Scenario::of(plan());
    let mut pause = 200;
    for number in 1..=5 {
        scenario.asks();
        assert_eq!(scenario.then(), [format!("start {number} of one")]);
        scenario.policy.not_started(number as u32, "no image".into(), scenario.now);
        assert_eq!(scenario.then(), [format!("{} none for {pause} ms: no image", 2 * number - 1)]);
        scenario.asks();
        assert_eq!(scenario.then(), [format!("{} none for {pause} ms: no image", 2 * number)]);
        scenario.passes(Duration::from_millis(pause));
        pause *= 2;
    }
    scenario.asks();
    scenario.asks();
    scenario.asks();
    assert_eq!(scenario.then(), ["start 6 of one"], "they are tried one by one");
    scenario.ready(6);
    assert_eq!(scenario.then(), ["11 to 6", "12 to 6", "start 7 of one"]);
    assert_eq!(scenario.answered(6).then(), ["13 to 6"]);
    assert_eq!(scenario.policy.problem(), None);
}

#[test]
fn a_request_goes_to_another_instance_than_the_one_that_failed_it() {
    let mut scenario = Scenario::running(Plan { max: 2, ..plan() }, 1);
    scenario.again(1);
    assert_eq!(scenario.then(), ["start 2 of one"]);
    scenario.asks();
    assert_eq!(scenario.then(), ["2 to 1"], "others go where it does not");
    assert_eq!(scenario.ready(2).then(), ["1 to 2"]);
    // Where there can be no other, it has to do.
    let mut scenario = Scenario::running(Plan { max: 1, ..plan() }, 1);
    scenario.again(1);
    assert_eq!(scenario.then(), ["1 to 1"]);
}

#[test]
fn a_second_try_is_not_refused_for_a_full_queue() {
    let mut scenario = Scenario::running(Plan { max: 1, concurrency: 1, queue: 1, ..plan() }, 1);
    scenario.asks();
    scenario.answered(1).ask(2);
    scenario.policy.ended(1, "was killed".into(), scenario.now);
    assert_eq!(scenario.then(), ["1 to 1", "2 to 1", "start 2 of one"]);
    scenario.again(1);
    scenario.again(None);
    assert!(scenario.then().is_empty(), "they were let in before, by this service or for its canary");
    scenario.asks();
    assert_eq!(scenario.then(), ["6 full"], "who comes anew was not");
    assert_eq!(scenario.ready(2).then(), ["5 to 2"]);
    assert_eq!(scenario.answered(2).answered(2).then(), ["4 to 2", "3 to 2"]);
}

#[test]
fn one_that_lets_nobody_in_ends() {
    let mut scenario = Scenario::running(plan(), 1);
    scenario.asks();
    scenario.policy.unreachable(1, "refused".into(), scenario.now);
    scenario.policy.unreachable(1, "refused".into(), scenario.now);
    assert_eq!(scenario.then(), ["1 to 1", "end 1"]);
    scenario.again(1);
    assert!(scenario.then().is_empty(), "the next one may do better");
    assert_eq!(scenario.passes(SECOND).then(), ["start 2 of one"]);
}

#[test]
fn one_that_cannot_be_woken_ends() {
    let mut scenario = Scenario::running(plan(), 1);
    scenario.passes(10 * SECOND);
    scenario.policy.slept(1, true, scenario.now);
    scenario.asks();
    scenario.policy.woke(1, Err("no memory".into()), scenario.now);
    assert_eq!(scenario.then(), ["sleep 1", "1 to 1", "wake 1", "end 1"]);
    assert_eq!(scenario.policy.problem(), Some("no memory"));
    scenario.again(1);
    assert!(scenario.then().is_empty(), "a new one needs not what that could not have");
    assert_eq!(scenario.passes(SECOND).then(), ["start 2 of one"]);
}

#[test]
fn one_whose_context_is_over_ends_with_its_last_request_and_another_has_its_place() {
    let mut scenario = Scenario::running(Plan { min: 1, max: 1, ..plan() }, 1);
    scenario.asks();
    scenario.answered(1).ask(2);
    assert_eq!(scenario.then(), ["1 to 1", "2 to 1", "3 to 1"]);
    scenario.policy.faulted(1, "the context is over".into(), scenario.now);
    assert_eq!(scenario.then(), ["start 2 of one"], "it has served, so the next one is wanted at once");
    assert_eq!(scenario.policy.problem(), Some("the context is over"));
    scenario.asks();
    scenario.policy.done(1, Outcome::Broken, scenario.now);
    assert!(scenario.then().is_empty(), "it has a request yet, and gets no other");
    scenario.policy.done(1, Outcome::Broken, scenario.now);
    assert_eq!(scenario.then(), ["end 1"]);
    assert_eq!(scenario.ready(2).then(), ["4 to 2"]);
    scenario.policy.ended(1, "ended".into(), scenario.now);
    // One that has never served is followed by the next one after a pause.
    scenario.policy.faulted(2, "the context is over".into(), scenario.now);
    scenario.policy.done(2, Outcome::Broken, scenario.now);
    assert_eq!(scenario.then(), ["end 2"]);
    scenario.policy.ended(2, "ended".into(), scenario.now);
    assert_eq!(scenario.passes(Duration::from_millis(200)).then(), ["start 3 of one"]);
}
