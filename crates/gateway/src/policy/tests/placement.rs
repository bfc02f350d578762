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
