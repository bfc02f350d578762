//! Sandboxes to their end and beyond: stopped, waited for, listed, removed.

use std::process::Stdio;

use crate::harness::{COUNTER, Rekindle, end_of, wait};

/// Says that it is up, and ends with 7 when it is asked to.
const POLITE: [&str; 3] = ["sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.02; done"];
/// Does not end when it is asked to.
const STUBBORN: [&str; 3] = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done"];

fn names(rekindle: &Rekindle, options: &[&str]) -> Vec<String> {
    let all = rekindle.json(&[&["ps"], options].concat());
    let all = all["sandboxes"].as_array().unwrap().iter();
    let mut names: Vec<_> = all.map(|sandbox| sandbox["name"].as_str().unwrap().to_string()).collect();
    names.sort();
    names
}

fn start_up(rekindle: &Rekindle, name: &str, command: &[&str]) {
    rekindle.start(name, command);
    wait("it to be up", || rekindle.lines(name) == ["up"]);
}

fn start_ended(rekindle: &Rekindle, name: &str) {
    rekindle.start(name, &["echo", "done"]);
    wait("its end", || rekindle.sandbox(name)["pid"] == 0);
}

fn logs_kept(rekindle: &Rekindle) -> usize {
    let all = std::fs::read_dir(rekindle.path("state/logs")).unwrap();
    let names = all.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.ends_with(".log") && name.matches('.').count() == 1 && !name.contains('-'))
        .count()
}

#[test]
fn those_that_have_ended_are_shown_when_they_are_asked_for_and_removed_with_their_logs() {
    let rekindle = Rekindle::new();
    rekindle.start("train", &["sleep", "600"]);
    start_ended(&rekindle, "done");
    assert_eq!(names(&rekindle, &[]), ["train"]);
    assert_eq!(names(&rekindle, &["-a"]), ["done", "train"]);
    assert_eq!(names(&rekindle, &["--filter", "state=exited"]), ["done"]);
    assert_eq!(names(&rekindle, &["-f", "state=exited", "-f", "state=running"]), ["done", "train"]);
    assert_eq!(names(&rekindle, &["--filter", "name=rai"]), ["train"]);
    assert!(names(&rekindle, &["--filter", "name=don"]).is_empty());
    let wrong = rekindle.output(&["ps", "--filter", "state=dead"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("checkpointing"));
    let (shown, live) = (rekindle.sandbox("done"), rekindle.sandbox("train"));
    assert!(shown["ended"].as_str() >= shown["started"].as_str() && live["ended"].is_null());

    let before = logs_kept(&rekindle);
    assert!(rekindle.refused(&["rm", "train"]).contains("is running"));
    assert!(rekindle.json(&["rm", "done"])["freed_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    assert_eq!(logs_kept(&rekindle), before - 1);
    assert!(rekindle.refused(&["logs", "done"]).contains("\"done\""));
    assert!(rekindle.refused(&["rm", "done"]).contains("no sandbox and no image"));
    // What is removed is so for the next daemon too.
    rekindle.kill_daemon();
    assert_eq!(names(&rekindle, &["-a"]), ["train"]);
}

#[test]
fn a_sandbox_and_an_image_of_one_name_are_told_apart() {
    let rekindle = Rekindle::new();
    for name in ["both", "image"] {
        rekindle.start("counter", &COUNTER);
        rekindle.goes_on("counter");
        rekindle.ok(&["checkpoint", "counter", "--to", name, "--stop"]);
    }
    start_ended(&rekindle, "both");
    let refused = rekindle.refused(&["rm", "both", "counter"]);
    assert!(refused.contains("rm --sandbox") && refused.contains("rmi"), "{refused}");
    // The other name was worked on.
    assert_eq!(names(&rekindle, &["-a"]), ["both"]);
    assert!(rekindle.refused(&["rm", "--sandbox", "image"]).contains("no sandbox named"));
    rekindle.ok(&["rm", "--sandbox", "both"]);
    assert_eq!(rekindle.images(), ["both", "image"]);
    // By a name that only an image has, that is meant.
    assert!(rekindle.json(&["rm", "image"])["freed_bytes"].as_u64().is_some_and(|bytes| bytes > 100_000));
    start_ended(&rekindle, "both");
    rekindle.ok(&["rmi", "both"]);
    assert!(rekindle.images().is_empty());
    assert_eq!(names(&rekindle, &["-a"]), ["both"]);
}

#[test]
fn prune_removes_what_has_ended_and_images_only_when_told() {
    let rekindle = Rekindle::new();
    rekindle.start("counter", &COUNTER);
    rekindle.goes_on("counter");
    for name in ["used", "unused"] {
        rekindle.ok(&["checkpoint", "counter", "--to", name, "--leave-running"]);
    }
    rekindle.ok(&["restore", "used", "--name", "again", "-d"]);
    start_ended(&rekindle, "one");
    start_ended(&rekindle, "other");
    let pruned = rekindle.json(&["prune"]);
    assert_eq!(pruned["sandboxes"], serde_json::json!(["one", "other"]));
    assert_eq!(pruned["images"], serde_json::json!([]));
    assert_eq!(names(&rekindle, &["-a"]), ["again", "counter"]);
    assert_eq!(rekindle.images(), ["unused", "used"]);
    let text = rekindle.ok(&["prune", "--images"]);
    assert!(text.starts_with("removed image unused\n") && text.ends_with("freed\n"), "{text}");
    assert_eq!(rekindle.images(), ["used"]);
    rekindle.goes_on("again");
    rekindle.goes_on("counter");
}

#[test]
fn an_image_that_is_held_for_a_moment_is_removed_after_it() {
    let rekindle = Rekindle::new();
    rekindle.start("sleeps", &["sleep", "600"]);
    rekindle.ok(&["checkpoint", "sleeps", "--to", "held", "--stop"]);
    let place = rekindle.json(&["inspect", "held"])["path"].as_str().unwrap().to_string();
    let held = std::fs::File::open(format!("{place}/manifest.json")).unwrap();
    held.lock_shared().unwrap();
    let removal = rekindle.command(&["rmi", "held"]).spawn().unwrap();
    // As long as a process may be paused that has the image open.
    std::thread::sleep(std::time::Duration::from_secs(1));
    drop(held);
    assert!(end_of(removal).status.success());
    assert!(rekindle.images().is_empty());
}

#[test]
fn stop_gives_a_program_the_time_that_it_is_told() {
    let rekindle = Rekindle::new();
    start_up(&rekindle, "polite", &POLITE);
    // It would take an hour if the time were waited out.
    let stopped = rekindle.command(&["stop", "--timeout", "3600", "polite"]).spawn().unwrap();
    assert!(end_of(stopped).status.success());
    let polite = rekindle.sandbox("polite");
    assert!(polite["state"] == "exited" && polite["exit_code"] == 7, "{polite}");
    for timeout in ["0", "0.2"] {
        start_up(&rekindle, "stubborn", &STUBBORN);
        rekindle.ok(&["stop", "-t", timeout, "stubborn"]);
        let stubborn = rekindle.sandbox("stubborn");
        assert!(stubborn["state"] == "killed" && stubborn["exit_code"] == 137, "{stubborn}");
    }
    assert!(rekindle.refused(&["stop", "stubborn"]).contains("not running"));
    assert_eq!(rekindle.output(&["stop", "-t", "-1", "stubborn"]).status.code(), Some(2));
    rekindle.assert_tidy();
}

#[test]
fn wait_ends_with_the_programs_code() {
    let rekindle = Rekindle::new();
    start_up(&rekindle, "polite", &POLITE);
    let waits = rekindle.command(&["wait", "polite"]).stdout(Stdio::piped()).spawn().unwrap();
    // It is given all the time that it needs.
    rekindle.ok(&["stop", "--timeout", "3600", "polite"]);
    let waited = end_of(waits);
    assert_eq!((waited.status.code(), &*waited.stdout), (Some(7), &b"7\n"[..]));
    // One that has ended is not waited for.
    assert_eq!(rekindle.output(&["wait", "polite"]).status.code(), Some(7));
    start_up(&rekindle, "stubborn", &STUBBORN);
    rekindle.ok(&["kill", "--signal", "9", "stubborn"]);
    let waited = rekindle.output(&["--json", "wait", "stubborn"]);
    let ended: serde_json::Value = serde_json::from_slice(&waited.stdout).unwrap();
    assert_eq!((waited.status.code(), &ended["state"]), (Some(137), &serde_json::json!("killed")));
    assert!(rekindle.refused(&["wait", "nobody"]).contains("\"nobody\""));
}

#[test]
fn a_report_is_a_line_unless_its_phases_are_asked_for() {
    let rekindle = Rekindle::new();
    rekindle.start("counter", &COUNTER);
    rekindle.goes_on("counter");
    let short = rekindle.ok(&["checkpoint", "counter", "--to", "one", "--leave-running"]);
    assert!(short.starts_with("in all ") && short.lines().count() == 1, "{short}");
    let long = rekindle.ok(&["checkpoint", "-v", "counter", "--to", "two", "--leave-running"]);
    assert!(
        long.trim_start().starts_with("LANE") && long.contains("in all ") && long.lines().count() > 3,
        "{long}"
    );
}
