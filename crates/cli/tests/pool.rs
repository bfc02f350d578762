//! Workers that wait for the next sandbox.

mod harness;

use std::os::unix::net::UnixStream;

use harness::{GPU_COUNTER, Rekindle, is_alive, kill, wait};
use serde_json::json;

/// A Rekindle whose daemon runs.
fn started() -> Rekindle {
    let rekindle = Rekindle::new();
    rekindle.ok(&["ps"]);
    rekindle
}

#[test]
fn run_and_restore_take_the_worker_that_waits() {
    let rekindle = started();
    let first = rekindle.pool(1)[0];
    rekindle.start("counter", &GPU_COUNTER);
    assert_eq!(rekindle.workers(), [first]);
    rekindle.goes_on("counter");
    let second = rekindle.pool(1)[0];
    assert_ne!(second, first);
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--leave-running"]);
    rekindle.ok(&["kill", "counter"]);
    wait("the first worker's end", || !is_alive(first));
    rekindle.ok(&["restore", "image", "-d", "--name", "again"]);
    assert_eq!(rekindle.workers(), [second]);
    rekindle.goes_on("again");
    assert_ne!(rekindle.pool(1)[0], second);
    rekindle.assert_tidy();
}

#[test]
fn a_worker_waits_for_the_image_that_was_stopped_or_restored_last() {
    let rekindle = started();
    rekindle.start("counter", &GPU_COUNTER);
    rekindle.goes_on("counter");
    let count = *rekindle.count("counter").last().unwrap();
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
    let mut last = count;
    for round in 0..3 {
        let name = format!("again-{round}");
        let prepared = rekindle.pool_for(&json!("image"), 1)[0];
        rekindle.ok(&["restore", "image", "-d", "--name", &name]);
        assert_eq!(rekindle.workers(), [prepared]);
        rekindle.goes_on(&name);
        assert!(rekindle.count(&name)[0] > last);
        last = count;
        rekindle.ok(&["kill", &name]);
    }
    // Another program is not given it.
    let prepared = rekindle.pool_for(&json!("image"), 1)[0];
    let plain = rekindle.pool(1)[0];
    rekindle.start("counter", &GPU_COUNTER);
    assert_eq!(rekindle.workers(), [plain]);
    rekindle.goes_on("counter");
    // Another image of the same name is not restored by it, and one that is gone is not waited for.
    rekindle.ok(&["rmi", "image"]);
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
    wait("the end of what waited for the old one", || !is_alive(prepared));
    rekindle.ok(&["restore", "image", "-d", "--name", "new"]);
    rekindle.goes_on("new");
    rekindle.ok(&["rmi", "image"]);
    rekindle.start("one-more", &GPU_COUNTER);
    rekindle.pool_for(&json!("image"), 0);
}

#[test]
fn a_worker_that_is_killed_while_it_waits_is_replaced() {
    let rekindle = started();
    let first = rekindle.pool(1)[0];
    kill(first, 9);
    wait("its end", || !is_alive(first));
    wait("another one", || rekindle.pool(1)[0] != first);
    rekindle.start("counter", &GPU_COUNTER);
    rekindle.goes_on("counter");
}

#[test]
fn one_that_is_killed_just_before_it_is_taken_does_no_harm() {
    let rekindle = started();
    for _ in 0..4 {
        kill(rekindle.pool(1)[0], 9);
        let output =
            rekindle.output(&[&["run", "--gpu", "emulated", "--"], &GPU_COUNTER[..], &["3"]].concat());
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n2\n3\n");
    }
}

#[test]
fn a_waiting_worker_ends_with_the_daemon_and_a_taken_one_does_not() {
    let rekindle = started();
    rekindle.start("counter", &GPU_COUNTER);
    let (taken, waiting) = (rekindle.workers()[0], rekindle.pool(1)[0]);
    rekindle.kill_daemon();
    wait("the waiting worker's end", || !is_alive(waiting));
    assert!(is_alive(taken));
    rekindle.goes_on("counter");
    let next = rekindle.pool(1)[0];
    rekindle.ok(&["shutdown"]);
    wait("the next one's end", || !is_alive(next));
    wait("the daemon's end", || UnixStream::connect(rekindle.path("socket")).is_err());
    assert_eq!(rekindle.worker_processes(), [taken]);
    let left = std::fs::read_dir(rekindle.path("runs")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("pool")).collect();
    assert!(left.is_empty(), "{left:?}");
    rekindle.goes_on("counter");
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
    wait("the end of the taken one", || !is_alive(taken));
}

#[test]
fn an_image_can_be_removed_while_a_worker_gets_ready_for_it() {
    let rekindle = started();
    for _ in 0..6 {
        rekindle.start("counter", &GPU_COUNTER);
        rekindle.goes_on("counter");
        rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
        rekindle.ok(&["rmi", "image"]);
        rekindle.pool_for(&json!("image"), 0);
    }
    rekindle.assert_tidy();
}

#[test]
fn one_whose_daemon_dies_before_it_has_connected_ends_too() {
    for _ in 0..8 {
        let rekindle = started();
        rekindle.kill_daemon();
        wait("its end", || rekindle.worker_processes().is_empty());
    }
}

#[test]
fn as_many_wait_as_were_asked_for() {
    let mut rekindle = Rekindle::new();
    rekindle.set_environment("REKINDLE_POOL", "2");
    rekindle.set_environment("REKINDLE_POOL_LIMIT", "3");
    rekindle.ok(&["ps"]);
    rekindle.pool(2);
    let other = "emulated:devices=2,memory=64M";
    let mut arguments = vec!["run", "--gpu", other, "--"];
    arguments.extend(GPU_COUNTER);
    arguments.push("1");
    rekindle.ok(&arguments);
    wait("all that fit", || {
        rekindle.json(&["ps"])["pool"].as_array().unwrap().iter().filter(|s| s["ready"] == true).count() == 3
    });
    let pool = rekindle.json(&["ps"])["pool"].clone();
    assert_eq!(pool.as_array().unwrap().iter().filter(|spare| spare["gpu"] == other).count(), 2);
}

#[test]
fn none_waits_where_none_is_wanted() {
    let mut rekindle = Rekindle::new();
    rekindle.set_environment("REKINDLE_POOL", "0");
    rekindle.start("counter", &GPU_COUNTER);
    rekindle.goes_on("counter");
    assert_eq!(rekindle.json(&["ps"])["pool"].as_array().unwrap().len(), 0);
    assert_eq!(rekindle.worker_processes(), rekindle.workers());
}
