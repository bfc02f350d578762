//! Several GPUs, and requests whose arrays lie on one of them.

use super::*;
use crate::plan::Place;

fn scenario(plan: Plan) -> Scenario {
    let place = |gpu: &str| Place { gpu: gpu.into(), counted: gpu.into() };
    let mut source = Source { gpus: vec![place("a"), place("b")], gpu: Some("a".into()), ..source("one") };
    source.need.gpu = "a".into();
    Scenario {
        policy: Policy::new(plan, Some(source)),
        now: Instant::now(),
        has_memory: true,
        done: Vec::new(),
    }
}

fn asks_near(scenario: &mut Scenario, gpu: &str, has_room: bool) -> u64 {
    let near = Some(Near { gpu: gpu.into(), has_room });
    let deadline = scenario.now + SECOND * 60;
    let request = scenario.policy.arrive(scenario.now, deadline, Coming::Anew, (true, near));
    scenario.grant();
    request
}

fn on(scenario: &Scenario, number: u32) -> String {
    scenario.policy.instance(number).unwrap().0.need.gpu.clone()
}

#[test]
fn the_first_instance_is_started_where_the_arrays_are_and_others_where_there_are_fewest() {
    let mut scenario = scenario(Plan { concurrency: 1, max: 4, ..plan() });
    asks_near(&mut scenario, "b", true);
    assert_eq!((scenario.then(), on(&scenario, 1)), (vec!["start 1 of one".to_string()], "b".to_string()));
    scenario.ask(1);
    assert_eq!((scenario.then(), on(&scenario, 2)), (vec!["start 2 of one".to_string()], "a".to_string()));
    // No room there: where there are fewest.
    asks_near(&mut scenario, "b", false);
    assert_eq!((scenario.then(), on(&scenario, 3)), (vec!["start 3 of one".to_string()], "a".to_string()));
    // A GPU that is none of the service's says nothing.
    asks_near(&mut scenario, "c", true);
    assert_eq!((scenario.then(), on(&scenario, 4)), (vec!["start 4 of one".to_string()], "b".to_string()));
}

#[test]
fn who_finds_nobody_near_goes_elsewhere_and_has_one_come_there() {
    let mut scenario = scenario(plan());
    scenario.asks();
    scenario.ready(1).answered(1);
    assert_eq!(
        (scenario.then(), on(&scenario, 1)),
        (vec!["start 1 of one".into(), "1 to 1".into()], "a".into())
    );
    asks_near(&mut scenario, "b", true);
    assert_eq!(
        (scenario.then(), on(&scenario, 2)),
        (vec!["2 to 1".into(), "start 2 of one".into()], "b".into())
    );
    // One comes already.
    asks_near(&mut scenario, "b", true);
    assert_eq!(scenario.then(), ["3 to 1"]);
    scenario.ready(2);
    asks_near(&mut scenario, "b", true);
    assert_eq!(scenario.then(), ["4 to 2"]);
    scenario.answered(1).answered(1).answered(2);
    // Both are free: each goes to its own.
    asks_near(&mut scenario, "a", true);
    asks_near(&mut scenario, "b", true);
    assert_eq!(scenario.then(), ["5 to 1", "6 to 2"]);
}

#[test]
fn nobody_goes_for_one_that_nobody_has_to_have() {
    let mut scenario = scenario(plan());
    scenario.asks();
    scenario.ready(1).answered(1).then();
    asks_near(&mut scenario, "b", false);
    assert_eq!(scenario.then(), ["2 to 1"]);
    // It waits for memory for a second, and no longer.
    scenario.has_memory = false;
    asks_near(&mut scenario, "b", true);
    assert_eq!(scenario.then(), ["3 to 1", "claim 2"]);
    assert!(scenario.passes(SECOND / 2).then().is_empty());
    assert_eq!(scenario.passes(SECOND).then(), ["withdraw 2"]);
}

#[test]
fn where_one_found_the_gpu_full_none_is_started_for_arrays_for_a_while() {
    // Nobody falls asleep meanwhile.
    let mut scenario = scenario(Plan { idle_ms: 100_000, ..plan() });
    scenario.asks();
    scenario.ready(1).answered(1).then();
    asks_near(&mut scenario, "b", true);
    assert_eq!(scenario.then(), ["2 to 1", "start 2 of one"]);
    scenario.policy.found_full(2, scenario.now);
    assert_eq!(scenario.then(), ["withdraw 2"]);
    scenario.answered(1);
    asks_near(&mut scenario, "b", true);
    assert_eq!(scenario.then(), ["3 to 1"]);
    scenario.answered(1).passes(SECOND * 31).then();
    asks_near(&mut scenario, "b", true);
    let words = scenario.then();
    assert!(words.contains(&"start 3 of one".to_string()), "{words:?}");
}

fn full(scenario: &mut Scenario, gpus: &[&str]) {
    scenario.policy.note_rooms(gpus.iter().map(|gpu| (gpu.to_string(), Room::Never)).collect());
}

#[test]
fn without_arrays_one_is_started_where_there_is_room() {
    let mut scenario = scenario(Plan { concurrency: 1, max: 4, ..plan() });
    full(&mut scenario, &["a"]);
    scenario.ask(2);
    assert_eq!(scenario.then(), ["start 1 of one", "start 2 of one"]);
    assert_eq!((on(&scenario, 1), on(&scenario, 2)), ("b".to_string(), "b".to_string()));
    // Where none has room it is the one with the fewest.
    full(&mut scenario, &["a", "b"]);
    scenario.ask(1);
    assert_eq!((scenario.then(), on(&scenario, 3)), (vec!["start 3 of one".to_string()], "a".to_string()));
}

#[test]
fn one_that_waits_goes_where_room_comes() {
    let mut scenario = scenario(plan());
    scenario.has_memory = false;
    full(&mut scenario, &["a", "b"]);
    scenario.ask(1);
    assert_eq!((scenario.then(), on(&scenario, 1)), (vec!["claim 1".to_string()], "a".to_string()));
    assert_eq!(scenario.policy.next_tick(scenario.now), Some(scenario.now + SECOND));
    assert!(scenario.passes(SECOND).then().is_empty());
    full(&mut scenario, &["a"]);
    assert_eq!((scenario.passes(SECOND).then(), on(&scenario, 1)), (vec!["move 1 to b".into()], "b".into()));
    assert!(scenario.policy.granted(1, scenario.now));
    assert_eq!(scenario.then(), ["start 1 of one"]);
}

#[test]
fn others_go_on_another_gpu_for_one_that_has_waited() {
    let mut scenario = scenario(plan());
    scenario.has_memory = false;
    full(&mut scenario, &["a", "b"]);
    scenario.ask(1);
    assert_eq!((scenario.then(), on(&scenario, 1)), (vec!["claim 1".to_string()], "a".to_string()));
    scenario.policy.note_rooms([("a".into(), Room::Never), ("b".into(), Room::OnceOthersGo)].into());
    assert!(scenario.passes(SECOND / 2).then().is_empty(), "it may have its turn yet");
    assert_eq!(scenario.passes(SECOND / 2).then(), ["move 1 to b"]);
    // Both are as good: it stays.
    scenario.policy.note_rooms([("a".into(), Room::OnceOthersGo), ("b".into(), Room::OnceOthersGo)].into());
    assert!(scenario.passes(SECOND * 2).then().is_empty());
}

#[test]
fn one_that_finds_its_gpu_full_tries_the_next_and_waits_once_all_are() {
    let mut scenario = scenario(plan());
    scenario.ask(1);
    assert_eq!((scenario.then(), on(&scenario, 1)), (vec!["start 1 of one".to_string()], "a".to_string()));
    scenario.has_memory = false;
    scenario.policy.found_full(1, scenario.now);
    assert_eq!((scenario.then(), on(&scenario, 1)), (vec!["move 1 to b".into()], "b".into()));
    assert!(scenario.policy.granted(1, scenario.now));
    assert_eq!(scenario.then(), ["start 1 of one"]);
    full(&mut scenario, &[]);
    scenario.policy.found_full(1, scenario.now);
    assert!(scenario.then().is_empty(), "it waits where it is");
    assert_eq!(on(&scenario, 1), "b");
}

#[test]
fn the_first_instance_of_an_image_is_started_where_there_is_room() {
    let mut scenario = scenario(plan());
    let source = scenario.policy.source().cloned().unwrap();
    full(&mut scenario, &["a"]);
    assert!(scenario.policy.roll_out(Source { id: "two".into(), ..source }, plan(), scenario.now));
    assert_eq!((scenario.then(), on(&scenario, 1)), (vec!["start 1 of one".to_string()], "b".to_string()));
}

#[test]
fn one_that_sleeps_near_is_woken_for_the_next_ones() {
    let mut scenario = scenario(plan());
    asks_near(&mut scenario, "b", true);
    scenario.ready(1).answered(1).then();
    scenario.passes(SECOND * 10);
    scenario.policy.slept(1, true, scenario.now);
    assert_eq!(scenario.then(), ["sleep 1"]);
    // What lies on the other GPU wakes it all the same: one that wakes is there before one that starts.
    asks_near(&mut scenario, "a", true);
    assert_eq!(scenario.then(), ["2 to 1", "wake 1", "start 2 of one"]);
    assert_eq!(on(&scenario, 2), "a");
}

/// With an instance on `a` that sleeps, after an answer if it is to have been asked.
fn asleep(plan: Plan, was_asked: bool) -> Scenario {
    let mut scenario = scenario(Plan { min: 1, ..plan.clone() });
    scenario.passes(SECOND).ready(1);
    if was_asked {
        scenario.ask(1);
        scenario.answered(1);
    }
    scenario.policy.replan(Plan { min: 0, ..plan }, scenario.now);
    scenario.passes(SECOND * 10);
    scenario.policy.slept(1, true, scenario.now);
    assert!(scenario.then().ends_with(&["sleep 1".to_string()]));
    assert_eq!(scenario.policy.asleep().map(|(number, _)| number).collect::<Vec<_>>(), [1]);
    scenario
}

fn finds_to_wake(scenario: &mut Scenario, room: Room) {
    scenario.policy.note_rooms_to_wake([(1, room)].into());
}

#[test]
fn one_that_would_wait_to_be_woken_sleeps_on_where_another_gpu_has_room() {
    let mut scenario = asleep(plan(), true);
    full(&mut scenario, &["a"]);
    finds_to_wake(&mut scenario, Room::OnceOthersGo);
    scenario.ask(1);
    assert_eq!((scenario.then(), on(&scenario, 2)), (vec!["start 2 of one".into()], "b".into()));
    assert_eq!(scenario.policy.stage(1), Some(Stage::Asleep));
    assert_eq!(scenario.ready(2).then(), ["2 to 2"]);
    // It is woken as soon as there is room, for what the other one cannot take.
    scenario.policy.note_rooms([("b".into(), Room::Never)].into());
    finds_to_wake(&mut scenario, Room::AtOnce);
    scenario.ask(2);
    assert_eq!(scenario.then(), ["3 to 2", "4 to 1", "wake 1"]);
}

#[test]
fn of_two_that_sleep_the_one_is_woken_that_need_not_wait() {
    let mut scenario = scenario(Plan { min: 2, ..plan() });
    scenario.passes(SECOND).ready(1).ready(2);
    scenario.policy.replan(plan(), scenario.now);
    scenario.passes(SECOND * 10);
    for number in [1, 2] {
        scenario.policy.slept(number, true, scenario.now);
    }
    assert_eq!((on(&scenario, 1), on(&scenario, 2)), ("a".to_string(), "b".to_string()));
    scenario.then();
    full(&mut scenario, &["a", "b"]);
    finds_to_wake(&mut scenario, Room::Never);
    scenario.ask(1);
    assert_eq!(scenario.then(), ["1 to 2", "wake 2"]);
}

#[test]
fn where_there_may_be_no_more_one_that_was_asked_waits_and_another_one_ends() {
    for (was_asked, words) in
        [(true, vec!["claim 1".to_string()]), (false, vec!["end 1".into(), "claim 2".into()])]
    {
        let mut scenario = asleep(Plan { max: 1, ..plan() }, was_asked);
        scenario.has_memory = false;
        full(&mut scenario, &["a"]);
        finds_to_wake(&mut scenario, Room::Never);
        scenario.ask(1);
        assert_eq!(scenario.then(), words);
        assert!(scenario.passes(SECOND * 3).then().is_empty());
        let coming = if was_asked { 1 } else { 2 };
        assert_eq!(on(&scenario, coming), if was_asked { "a" } else { "b" });
    }
}

#[test]
fn one_that_an_earlier_daemon_had_is_not_given_up() {
    let mut scenario = scenario(Plan { max: 1, ..plan() });
    let source = scenario.policy.source().cloned().unwrap();
    scenario.policy.adopt(1, Some(Level::Host), (&source, true), scenario.now);
    scenario.has_memory = false;
    full(&mut scenario, &["a"]);
    finds_to_wake(&mut scenario, Room::Never);
    scenario.ask(1);
    assert_eq!(scenario.then(), ["claim 1"]);
}

#[test]
fn one_that_waits_to_be_woken_waits_no_more_once_there_is_room_elsewhere() {
    let mut scenario = asleep(plan(), true);
    scenario.has_memory = false;
    full(&mut scenario, &["a", "b"]);
    finds_to_wake(&mut scenario, Room::Never);
    scenario.ask(1);
    assert_eq!(scenario.then(), ["claim 1"]);
    assert_eq!(scenario.policy.next_tick(scenario.now), Some(scenario.now + SECOND));
    scenario.policy.note_rooms([("a".into(), Room::Never), ("b".into(), Room::OnceOthersGo)].into());
    assert!(scenario.passes(SECOND / 2).then().is_empty(), "it may have its turn yet");
    assert_eq!(scenario.passes(SECOND / 2).then(), ["withdraw 1", "claim 2"]);
    assert_eq!((on(&scenario, 2), scenario.policy.stage(1)), ("b".to_string(), Some(Stage::Asleep)));
    assert!(!scenario.policy.granted(1, scenario.now), "it wants nothing any more");
    assert!(scenario.policy.granted(2, scenario.now));
    assert_eq!(scenario.then(), ["start 2 of one"]);
}
