//! Workers that wait for the next sandbox.

use std::os::unix::net::UnixStream;

use crate::harness::{GPU_COUNTER, Rekindle, is_alive, kill, wait};
use serde_json::Value;

const MODULES: [&str; 2] = ["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/modules.py")];

/// A Rekindle whose daemon runs. None but new workers wait.
fn started() -> Rekindle {
    let mut rekindle = Rekindle::new();
    rekindle.set_environment("REKINDLE_POOL_WINDOW", "0");
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

/// A program with these modules, each of which adds its number.
fn adding(rekindle: &Rekindle, name: &str, modules: &[&str]) {
    rekindle.start(name, &[&MODULES[..], modules].concat());
    adds(rekindle, name, modules);
}

/// Waits until the program has printed some more; each number must be the one before and what all modules add.
fn adds(rekindle: &Rekindle, name: &str, modules: &[&str]) {
    let number = |module: &&str| module.trim_start_matches(['g', 's']).parse::<u64>().unwrap();
    let step: u64 = modules.iter().map(number).sum();
    let before = rekindle.lines(name).len();
    wait(&format!("{name} to go on"), || rekindle.lines(name).len() > before + 3);
    let lines = rekindle.lines(name);
    let numbers: Vec<u64> = lines.iter().filter_map(|line| line.parse().ok()).collect();
    let whole = &numbers[..numbers.len() - 1];
    assert!(whole.windows(2).all(|pair| pair[1] == pair[0] + step), "{step}: {lines:?}");
}

/// How many modules the sandbox's last restore has loaded whole, and how many it has in pieces.
fn modules(rekindle: &Rekindle, name: &str) -> (u64, u64) {
    let svg = rekindle.path("trace.svg");
    let trace = rekindle.json(&["trace", name, "--svg", svg.to_str().unwrap()]);
    let phases = trace["traces"].as_array().unwrap().last().unwrap()["phases"].clone();
    let is_modules = |phase: &&Value| phase["name"] == "modules";
    let counts = phases.as_array().unwrap().iter().find(is_modules).unwrap()["counts"].clone();
    let count = |what: &str| counts[what].as_u64().unwrap_or(0);
    (count("loaded"), count("in pieces"))
}

#[test]
fn images_are_restored_in_turn_by_whichever_worker_waits() {
    for code in ["pieces", "whole"] {
        let mut rekindle = Rekindle::new();
        rekindle.set_environment("REKINDLE_TUNING", &format!("gpu.code={code}"));
        // One waits, however soon a worker is taken after another.
        rekindle.set_environment("REKINDLE_POOL_WINDOW", "0");
        rekindle.ok(&["ps"]);
        let images = [("one", &["1", "g9", "s7"][..]), ("other", &["2", "s8"])];
        for (name, its) in images {
            adding(&rekindle, name, its);
            rekindle.ok(&["checkpoint", name, "--to", name, "--stop"]);
            // Right after that, whatever waits by then.
            rekindle.ok(&["restore", name, "-d", "--name", "at-once"]);
            adds(&rekindle, "at-once", its);
            rekindle.ok(&["kill", "at-once"]);
        }
        for (name, its) in images.into_iter().chain(images) {
            let waits = rekindle.pool(1)[0];
            rekindle.ok(&["restore", name, "-d", "--name", "again"]);
            assert_eq!(rekindle.workers(), [waits], "{name}, {code}");
            adds(&rekindle, "again", its);
            let count = its.len() as u64;
            assert_eq!(modules(&rekindle, "again"), if code == "whole" { (count, 0) } else { (0, count) });
            rekindle.ok(&["kill", "again"]);
        }
        rekindle.assert_tidy();
    }
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
    // It has its worker: one that the daemon's death keeps from it would say so among the numbers.
    rekindle.goes_on("counter");
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
fn an_image_can_be_removed_at_once_and_another_has_its_name() {
    let rekindle = started();
    for _ in 0..3 {
        rekindle.start("counter", &GPU_COUNTER);
        rekindle.goes_on("counter");
        rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
        rekindle.ok(&["rmi", "image"]);
    }
    rekindle.start("counter", &GPU_COUNTER);
    rekindle.goes_on("counter");
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
    rekindle.ok(&["restore", "image", "-d", "--name", "new"]);
    rekindle.goes_on("new");
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
    rekindle.set_environment("REKINDLE_POOL_WINDOW", "0");
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
    let new = pool.as_array().unwrap().iter().filter(|spare| spare["returned"] == false);
    assert_eq!(new.filter(|spare| spare["gpu"] == other).count(), 2);
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
