//! Buffers that instances of an image share.

use std::fs;

use serde_json::Value;

use crate::caches::support::*;
use crate::harness::{Rekindle, wait};

const MODEL: [&str; 2] = ["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/model.py")];
const KERNEL_WRITES: &str = "10";
const FILL_WRITES: &str = "12";

/// A daemon that shares what it knows nobody to write to.
fn sharing(limit: &str) -> Rekindle {
    let rekindle = Rekindle::with(&[("REKINDLE_GPU_CACHE", limit), ("REKINDLE_GPU_HASH", "on")]);
    rekindle.start("model", &MODEL);
    rekindle.goes_on("model");
    rekindle.ok(&["checkpoint", "model", "--to", "model", "--stop"]);
    rekindle
}

/// The buffers that nobody was seen to write to, once that is known.
fn unwritten(rekindle: &Rekindle) -> Option<Vec<String>> {
    let path = rekindle.json(&["inspect", "model"])["path"].as_str().unwrap().to_string();
    let text = fs::read_to_string(format!("{path}/unwritten.json")).ok()?;
    let list: Value = serde_json::from_str(&text).unwrap();
    Some(list["parts"].as_array().unwrap().iter().map(|part| part.as_str().unwrap().to_string()).collect())
}

/// Until instances can share this much of the GPU's cache.
fn wait_shared(rekindle: &Rekindle, megabytes: u64) {
    wait("buffers to share", || {
        let caches = rekindle.json(&["images"])["caches"].clone();
        caches["gpus"]["emulated"]["shared_bytes"] == megabytes * MEGABYTE
    });
}

fn restore_sharing(rekindle: &Rekindle, name: &str) {
    rekindle.ok(&["restore", "model", "-d", "--name", name]);
    rekindle.goes_on(name);
    let from = loaded_from(rekindle, name);
    assert_eq!(megabytes(&from, "shared"), 6, "{from}");
    assert_eq!(shared(rekindle, name), 6);
    assert_eq!(rekindle.sandbox(name)["device_bytes"], 12 * MEGABYTE);
}

/// Megabytes that a running program shares.
fn shared(rekindle: &Rekindle, name: &str) -> u64 {
    let sandbox = rekindle.sandbox(name);
    assert!(sandbox["pid"].as_i64().unwrap() > 0, "{sandbox} {:?}", rekindle.lines(name));
    sandbox["shared_bytes"].as_u64().unwrap() / MEGABYTE
}

fn write(rekindle: &Rekindle, name: &str, how: &str) {
    rekindle.ok(&["kill", name, "--signal", how]);
    wait("memory of its own", || shared(rekindle, name) == 0);
    rekindle.goes_on(name);
}

#[test]
fn instances_share_what_none_writes_to_and_who_writes_gets_its_own() {
    let rekindle = sharing("64M");
    rekindle.ok(&["profile", "model", "--", "sleep", "0.2"]);
    assert_eq!(
        unwritten(&rekindle).unwrap().len(),
        1,
        "the weights, and not what is written again and again"
    );
    let told = |row: &Value| row["problem"].as_str().is_some_and(|problem| problem.contains("profile"));
    assert!(rekindle.json(&["ps", "-a"])["sandboxes"].as_array().unwrap().iter().any(told));
    wait_shared(&rekindle, 6);
    for name in ["one", "other", "third"] {
        restore_sharing(&rekindle, name);
    }
    // What each sees of weights and state is what it would be alone, or it ends.
    write(&rekindle, "one", KERNEL_WRITES);
    rekindle.goes_on("other");
    assert_eq!(shared(&rekindle, "other"), 6);
    write(&rekindle, "other", FILL_WRITES);
    rekindle.goes_on("third");
    assert_eq!(shared(&rekindle, "third"), 6);
    wait("the lesson", || unwritten(&rekindle).unwrap().is_empty());
    // An image of one that shares has all.
    rekindle.ok(&["checkpoint", "third", "--to", "later", "--stop"]);
    rekindle.ok(&["restore", "later", "-d", "--name", "fourth"]);
    rekindle.goes_on("fourth");
    rekindle.ok(&["kill", "one", "other", "fourth"]);
    rekindle.assert_tidy();
}

#[test]
fn who_shares_and_rests_holds_less_for_stacks_and_is_told_of_the_same_limit() {
    let rekindle = sharing("64M");
    rekindle.ok(&["profile", "model", "--", "sleep", "0.2"]);
    wait_shared(&rekindle, 6);
    restore_sharing(&rekindle, "one");
    let says = |text: &str| {
        let logs = fs::read_dir(rekindle.path("state/logs")).unwrap();
        logs.flatten().any(|log| fs::read_to_string(log.path()).is_ok_and(|log| log.contains(text)))
    };
    rekindle.ok(&["kill", "one", "--signal", "19"]);
    wait("its rest", || says("holds 512 bytes for a thread's stack"));
    rekindle.ok(&["kill", "one", "--signal", "1"]);
    rekindle.ok(&["kill", "one", "--signal", "18"]);
    rekindle.goes_on("one");
    assert_eq!(shared(&rekindle, "one"), 6);
    assert!(!says("for a thread's stack again"));
    write(&rekindle, "one", FILL_WRITES);
    assert!(says("for a thread's stack again"));
    rekindle.ok(&["kill", "one"]);
}

#[test]
fn what_is_learned_by_itself_and_proves_wrong_is_not_shared_again() {
    let rekindle = sharing("64M");
    rekindle.ok(&["restore", "model", "-d", "--name", "first"]);
    // What was written there has been there before, so that hashes do not tell.
    wait("what is not written to", || unwritten(&rekindle).is_some());
    assert_eq!(unwritten(&rekindle).unwrap().len(), 2);
    wait_shared(&rekindle, 10);
    rekindle.ok(&["restore", "model", "-d", "--name", "second"]);
    rekindle.goes_on("second");
    assert_eq!(shared(&rekindle, "second"), 0);
    wait("the lesson", || unwritten(&rekindle).unwrap().is_empty());
    rekindle.ok(&["kill", "first", "second"]);
}

#[test]
fn who_shares_goes_on_without_daemon_and_image_and_through_sleep() {
    let rekindle = sharing("64M");
    rekindle.ok(&["profile", "model", "--", "sleep", "0.2"]);
    wait_shared(&rekindle, 6);
    for name in ["one", "other", "third"] {
        restore_sharing(&rekindle, name);
    }
    rekindle.ok(&["sleep", "other", "--level", "gpu"]);
    rekindle.goes_on("other");
    assert_eq!(shared(&rekindle, "other"), 0);
    rekindle.kill_daemon();
    rekindle.goes_on("one");
    write(&rekindle, "one", KERNEL_WRITES);
    rekindle.ok(&["rmi", "model"]);
    assert_eq!(shared(&rekindle, "third"), 0);
    rekindle.goes_on("third");
    write(&rekindle, "third", KERNEL_WRITES);
    rekindle.ok(&["kill", "one", "other", "third"]);
    rekindle.assert_tidy();
}

#[test]
fn what_an_instance_shares_stays_when_others_need_the_room_and_goes_after_it() {
    let rekindle = sharing("14M");
    rekindle.ok(&["profile", "model", "--", "sleep", "0.2"]);
    wait_shared(&rekindle, 6);
    restore_sharing(&rekindle, "one");
    for (other, megabytes, stays) in [("other", "8", 6), ("third", "10", 0)] {
        image_of(&rekindle, other, &["8", megabytes]);
        restore(&rekindle, other);
        wait_cached(&rekindle, other, "emulated", megabytes.parse().unwrap());
        wait_shared(&rekindle, stays);
        if stays > 0 {
            rekindle.goes_on("one");
            assert_eq!(shared(&rekindle, "one"), 6);
            rekindle.ok(&["kill", "one"]);
        }
    }
    rekindle.ok(&["restore", "model", "-d", "--name", "again"]);
    rekindle.goes_on("again");
    rekindle.ok(&["kill", "again"]);
    rekindle.assert_tidy();
}
