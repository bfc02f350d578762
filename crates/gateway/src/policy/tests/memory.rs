//! GPU memory that there is not.

use super::*;

#[test]
fn one_without_gpu_memory_waits_and_its_requests_with_it() {
    let mut scenario = Scenario { has_memory: false, ..Scenario::of(plan()) };
    scenario.asks();
    assert_eq!(scenario.then(), ["claim 1"]);
    scenario.policy.tell_shortage(1, "it needs 5 MB".into());
    scenario.ask(2);
    assert_eq!(scenario.then(), ["claim 2"], "as many wait as are needed");
    assert_eq!(scenario.policy.problem(), Some("it needs 5 MB"));
    scenario.policy.gone(3, scenario.now);
    assert_eq!(scenario.then(), ["withdraw 2"], "and no more than that");
    assert_eq!(scenario.passes(60 * SECOND).then(), ["1 too long", "2 too long", "withdraw 1"]);
    assert_eq!((scenario.policy.instances().count(), scenario.policy.problem()), (0, None));
    assert!(!scenario.policy.granted(1, scenario.now), "nobody wants it any more");
    scenario.has_memory = true;
    scenario.asks();
    assert_eq!(scenario.then(), ["start 3 of one"]);
    scenario.policy.found_full(3, scenario.now);
    assert!(scenario.then().is_empty());
    assert!(scenario.policy.granted(3, scenario.now));
    assert_eq!(scenario.then(), ["start 3 of one"], "once there is memory");
}

#[test]
fn one_that_sleeps_is_sent_nothing_before_there_is_memory_to_wake_it() {
    let mut scenario = Scenario::running(Plan { max: 1, ..plan() }, 1);
    scenario.passes(10 * SECOND);
    scenario.policy.slept(1, true, scenario.now);
    scenario.has_memory = false;
    scenario.asks();
    assert_eq!(scenario.then(), ["sleep 1", "claim 1"]);
    assert!(scenario.policy.granted(1, scenario.now));
    assert_eq!(scenario.then(), ["1 to 1", "wake 1"]);
}

#[test]
fn who_has_no_request_and_need_not_stay_awake_goes_down_for_others() {
    let mut scenario = Scenario::running(Plan { min: 1, ..plan() }, 3);
    let idle = |scenario: &Scenario| {
        scenario.policy.idle(scenario.now).iter().map(|one| one.instance).collect::<Vec<_>>()
    };
    scenario.asks();
    assert_eq!(scenario.then(), ["1 to 1"]);
    assert_eq!(idle(&scenario), [2, 3], "the first has a request, and is the one that stays");
    assert!(!scenario.policy.demote(1, scenario.now));
    assert!(scenario.policy.demote(2, scenario.now));
    assert_eq!(scenario.passes(SECOND).then(), ["sleep 2"]);
    scenario.policy.slept(2, true, scenario.now);
    assert_eq!(idle(&scenario), [3, 2]);
    assert!(scenario.policy.demote(2, scenario.now));
    assert_eq!(scenario.then(), ["end 2"], "what sleeps ends");
    scenario.policy.ended(2, String::new(), scenario.now);
    assert!(scenario.policy.demote(3, scenario.now));
    scenario.policy.slept(3, false, scenario.now);
    assert_eq!(scenario.then(), ["sleep 3"]);
    assert!(scenario.policy.demote(3, scenario.now));
    assert_eq!(scenario.then(), ["end 3"], "what cannot sleep ends, too");
    scenario.policy.ended(3, String::new(), scenario.now);
    scenario.answered(1);
    assert!(idle(&scenario).is_empty(), "it is to stay awake");
}

#[test]
fn a_new_image_that_gets_no_memory_in_time_changes_nothing() {
    let mut scenario = Scenario::running(plan(), 1);
    scenario.has_memory = false;
    assert!(scenario.policy.roll_out(source("two"), plan(), scenario.now));
    assert_eq!(scenario.then(), ["claim 2"]);
    scenario.policy.tell_shortage(2, "it needs 5 MB".into());
    assert!(scenario.passes(9 * SECOND).then().is_empty());
    scenario.asks();
    scenario.passes(51 * SECOND);
    let failed = "rolled out: Err(\"no instance of it could be started in time: it needs 5 MB\")";
    assert_eq!(scenario.then(), ["1 to 1", failed, "withdraw 2"]);
    assert_eq!(scenario.policy.source(), Some(&source("one")));
}
