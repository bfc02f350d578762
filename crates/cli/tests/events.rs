//! What happens, as it is told.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::harness::{COUNTER, Rekindle};
use serde_json::{Value, json};

#[test]
fn states_and_images_are_told_in_their_order() {
    let rekindle = Rekindle::new();
    let mut listener = rekindle.command(&["--json", "events"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(listener.stdout.take().unwrap()).lines();
    let mut next = move || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["event"], "listening");
    // Up to the event that is waited for; all of them.
    let mut until = |event: Value| -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let mut told = next();
            let time = told.as_object_mut().unwrap().remove("time").unwrap();
            assert!(time.as_str().unwrap().starts_with("2"), "{time}");
            all.push(told.clone());
            if told == event {
                return all;
            }
        }
    };
    let state = |state: &str| json!({ "event": "state", "sandbox": "counter", "state": state });
    rekindle.start("counter", &COUNTER);
    assert_eq!(until(state("running")), [state("running")]);
    rekindle.goes_on("counter");
    rekindle.ok(&["checkpoint", "counter", "--to", "warm", "--leave-running"]);
    let image = |event: &str| json!({ "event": event, "image": "warm" });
    assert_eq!(until(image("image-made")), [state("checkpointing"), state("running"), image("image-made")]);
    rekindle.ok(&["kill", "--signal", "9", "counter"]);
    let killed = json!({ "event": "state", "sandbox": "counter", "state": "killed", "exit_code": 137 });
    until(killed);
    rekindle.ok(&["rm", "counter"]);
    until(json!({ "event": "removed", "sandbox": "counter" }));
    rekindle.ok(&["rmi", "warm"]);
    until(image("image-removed"));
    listener.kill().unwrap();
    listener.wait().unwrap();
}
