//! GPU memory that there is not.

use super::*;

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
