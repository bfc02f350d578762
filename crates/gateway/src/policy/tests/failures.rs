//! Instances that fail, and what becomes of their requests.

use super::*;

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
