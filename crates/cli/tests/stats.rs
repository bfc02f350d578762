//! What programs use, as it is shown.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::harness::{COUNTER, Rekindle, end_of, kill, wait};
use serde_json::Value;

const TRANSFERS: [&str; 2] = ["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/transfers.py")];

/// Of one that is at work, once its worker has had the time to tell of it.
fn known(rekindle: &Rekindle, name: &str) -> Value {
    let mut found = Value::Null;
    wait("what it uses to be known", || {
        let all = look(rekindle, &[]);
        found = all.iter().find(|used| used["name"] == name).cloned().unwrap_or_default();
        !found["device_bytes"].is_null() && found["processor_percent"].as_f64() > Some(0.0)
    });
    found
}

fn look(rekindle: &Rekindle, names: &[&str]) -> Vec<Value> {
    let shown = rekindle.json(&[&["stats", "--no-stream"], names].concat());
    shown["sandboxes"].as_array().unwrap().clone()
}

#[test]
fn copies_memory_and_processors_are_those_of_the_program() {
    let rekindle = Rekindle::new();
    rekindle.start("busy", &TRANSFERS);
    rekindle.start("counter", &COUNTER);
    wait("its copies", || rekindle.lines("busy") == ["copied"]);
    let used = known(&rekindle, "busy");
    assert_eq!((&used["state"], &used["processes"]), (&"running".into(), &1.into()));
    assert_eq!(
        (&used["to_gpu_bytes"], &used["from_gpu_bytes"]),
        (&(3 << 20).into(), &(1 << 20).into()),
        "{used}"
    );
    assert!(used["device_bytes"].as_u64() >= Some(4 << 20) && used["pinned_bytes"].as_u64() >= Some(1 << 20));
    assert!(used["host_bytes"].as_u64() > Some(4 << 20), "{used}");
    assert!(used["processor_us"].as_u64() > Some(0), "{used}");

    // After a restore its worker has begun anew.
    rekindle.ok(&["checkpoint", "busy", "--to", "image", "--stop"]);
    let ended = &look(&rekindle, &["busy"])[0];
    assert_eq!((&ended["state"], &ended["processes"]), (&"stopped".into(), &0.into()));
    assert!(ended["device_bytes"].is_null() && ended["processor_percent"].is_null(), "{ended}");
    rekindle.ok(&["restore", "image", "-d"]);
    let again = known(&rekindle, "busy");
    assert_eq!(again["to_gpu_bytes"], 0, "{again}");
    assert!(again["device_bytes"].as_u64() >= Some(4 << 20), "{again}");
    assert!(rekindle.refused(&["stats", "--no-stream", "nobody"]).contains("nobody"));
    let table = rekindle.ok(&["stats", "--no-stream"]);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines.len() == 3 && lines[0].contains("TO GPU") && table.contains("counter"), "{table}");
}

#[test]
fn it_goes_on_until_all_that_were_named_have_ended() {
    let rekindle = Rekindle::new();
    rekindle.start("counter", &COUNTER);
    let mut command = rekindle.command(&["stats", "--json", "counter"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut state = || {
        let document: Value = serde_json::from_str(&shown.next().unwrap().unwrap()).unwrap();
        document["sandboxes"][0]["state"].clone()
    };
    assert_eq!((state(), state()), ("running".into(), "running".into()));
    kill(rekindle.sandbox("counter")["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    wait("its end", || state() == "killed");
    assert!(end_of(child).status.success());
}
