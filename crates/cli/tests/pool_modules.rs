//! Modules that are whole and that images have in common wait loaded in the workers that wait for anybody.

mod harness;

use harness::{Rekindle, end_of, is_alive, kill, wait};
use serde_json::Value;

const MODULES: [&str; 2] = ["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/modules.py")];

/// Nothing is taken apart.
fn whole() -> Rekindle {
    let mut rekindle = Rekindle::new();
    rekindle.set_environment("REKINDLE_CODE", "whole");
    rekindle
}

/// None waits for an image alone; those that wait for anybody load so many bytes ahead.
fn started(bytes: &str) -> Rekindle {
    let mut rekindle = whole();
    rekindle.set_environment("REKINDLE_POOL_IMAGES", "0");
    rekindle.set_environment("REKINDLE_POOL_MODULES", bytes);
    rekindle
}

/// Runs a program with these modules into an image of its name.
fn image(rekindle: &Rekindle, name: &str, modules: &[&str]) {
    rekindle.start(name, &[&MODULES[..], modules].concat());
    adds(rekindle, name, modules);
    rekindle.ok(&["checkpoint", name, "--to", name, "--stop"]);
}

/// Waits until the program has printed some more; each number must be the one before and what all modules add.
fn adds(rekindle: &Rekindle, name: &str, modules: &[&str]) {
    let step: u64 =
        modules.iter().map(|module| module.trim_start_matches(['g', 's']).parse::<u64>().unwrap()).sum();
    let before = rekindle.lines(name).len();
    wait(&format!("{name} to go on"), || rekindle.lines(name).len() > before + 3);
    let lines = rekindle.lines(name);
    let numbers: Vec<u64> = lines.iter().filter_map(|line| line.parse().ok()).collect();
    let whole = &numbers[..numbers.len() - 1];
    assert!(whole.windows(2).all(|pair| pair[1] == pair[0] + step), "{step}: {lines:?}");
}

/// Waits until so many modules wait in the worker that waits for anybody; their bytes.
fn waiting(rekindle: &Rekindle, count: u64) -> u64 {
    let mut bytes = 0;
    wait(&format!("{count} modules to be loaded ahead"), || {
        let pool = rekindle.json(&["ps"])["pool"].clone();
        let spare = pool.as_array().unwrap().iter().find(|spare| spare["image"].is_null()).cloned();
        bytes = spare.as_ref().map_or(0, |spare| spare["module_bytes"].as_u64().unwrap());
        spare.is_some_and(|spare| spare["modules"] == count)
    });
    bytes
}

/// How many modules the sandbox's restore has found and how many it has loaded.
fn counts(rekindle: &Rekindle, name: &str) -> (u64, u64) {
    let svg = rekindle.path("trace.svg");
    let trace = rekindle.json(&["trace", name, "--svg", svg.to_str().unwrap()]);
    let trace = trace["traces"].as_array().unwrap().last().unwrap().clone();
    let is_modules = |phase: &&Value| phase["name"] == "modules";
    let phase = trace["phases"].as_array().unwrap().iter().find(is_modules).unwrap().clone();
    let count = |what: &str| phase["counts"][what].as_u64().unwrap_or(0);
    (count("loaded ahead"), count("loaded"))
}

fn restored(rekindle: &Rekindle, image: &str, name: &str, modules: &[&str]) -> (u64, u64) {
    rekindle.ok(&["restore", image, "-d", "--name", name]);
    adds(rekindle, name, modules);
    counts(rekindle, name)
}

/// How many modules an image has.
fn modules_of(rekindle: &Rekindle, image: &str) -> usize {
    let parts = rekindle.json(&["inspect", image])["parts"].clone();
    parts.as_array().unwrap().iter().filter(|part| part["kind"] == "module").count()
}

#[test]
fn images_find_what_they_have_in_common_and_nobody_else_can_tell() {
    let (first, second) = (["1", "2", "3", "g9"], ["2", "3", "4", "g9"]);
    let rekindle = started("1M");
    image(&rekindle, "first", &first);
    image(&rekindle, "second", &second);
    // What has globals has addresses, and one image has 1 and 4 alone.
    waiting(&rekindle, 2);
    for (name, modules) in [("first", &first), ("second", &second)] {
        assert_eq!(restored(&rekindle, name, &format!("{name}-again"), modules), (2, 2));
        waiting(&rekindle, 2);
    }
    // An image has what its program has loaded, whatever waited for it.
    rekindle.ok(&["checkpoint", "first-again", "--to", "third", "--stop"]);
    assert_eq!(modules_of(&rekindle, "third"), first.len());
    // So has that of a program which has none of what its worker had loaded.
    let pid = rekindle.pool(1)[0];
    waiting(&rekindle, 3);
    rekindle.start("other", &[&MODULES[..], &["7"]].concat());
    assert!(rekindle.workers().contains(&pid));
    adds(&rekindle, "other", &["7"]);
    rekindle.ok(&["checkpoint", "other", "--to", "other", "--stop"]);
    assert_eq!(modules_of(&rekindle, "other"), 1);
    // As one that waited with nothing would have shown it: the emulated GPU has all of its memory free.
    let told = rekindle.lines("other")[0].clone();
    let words: Vec<_> = told.split_whitespace().collect();
    assert!(words[0] == words[2] && told.ends_with("free"), "{told}");
    waiting(&rekindle, 3);
    assert_eq!(restored(&rekindle, "other", "other-again", &["7"]), (0, 1));
    waiting(&rekindle, 3);
    assert_eq!(restored(&rekindle, "third", "third-again", &first), (3, 1));
    rekindle.assert_tidy();
}

#[test]
fn a_worker_that_waits_for_one_image_does_for_those_that_begin_alike() {
    let rekindle = whole();
    // What lies in globals is each image's own.
    let (short, long, last) = (["1", "2", "s9"], ["1", "2", "s8", "5"], ["1", "2", "s7"]);
    image(&rekindle, "short", &short);
    image(&rekindle, "long", &long);
    image(&rekindle, "last", &last);
    for (made_for, name, modules, found) in [
        ("last", "short", &short[..], (3, 0)),
        ("short", "long", &long[..], (3, 1)),
        // The other way round there is too much in it.
        ("long", "last", &last[..], (2, 1)),
    ] {
        waiting(&rekindle, 2);
        let made = rekindle.pool_for(&Value::from(made_for), 1)[0];
        let again = format!("{name}-again");
        assert_eq!(restored(&rekindle, name, &again, modules), found, "{name} where {made_for} was expected");
        assert_eq!(rekindle.workers().contains(&made), found.0 == 3);
    }
    rekindle.ok(&["checkpoint", "long-again", "--to", "further", "--stop"]);
    assert_eq!(modules_of(&rekindle, "further"), long.len());
    rekindle.pool_for(&Value::from("further"), 1);
    assert_eq!(restored(&rekindle, "further", "further-again", &long), (4, 0));
    rekindle.assert_tidy();
}

#[test]
fn a_worker_that_turns_out_to_be_of_no_use_for_an_image_is_replaced_by_a_new_one() {
    let mut rekindle = whole();
    rekindle.set_environment("REKINDLE_FAULT", "begins-alike");
    image(&rekindle, "short", &["1", "2"]);
    image(&rekindle, "last", &["1", "2"]);
    waiting(&rekindle, 2);
    let made = rekindle.pool_for(&Value::from("last"), 1)[0];
    restored(&rekindle, "short", "again", &["1", "2"]);
    let log = rekindle.daemon_log();
    assert!(log.contains("the restore begins again with another worker"), "{log}");
    assert!(!rekindle.workers().contains(&made));
    rekindle.assert_tidy();
}

#[test]
fn an_image_is_removed_without_waiting_for_whoever_loads_a_module_from_it() {
    let mut rekindle = started("1M");
    rekindle.set_environment("REKINDLE_FAULT", "module-ahead:hang");
    image(&rekindle, "first", &["1", "2"]);
    image(&rekindle, "second", &["1", "2"]);
    let loads = rekindle.pool(1)[0];
    let images = rekindle.path("state/store/images");
    let read = || -> Option<String> {
        let descriptors = std::fs::read_dir(format!("/proc/{loads}/fd")).unwrap();
        let open = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let of_image = open.filter_map(|path| Some(path.strip_prefix(&images).ok()?.to_path_buf()));
        of_image.last().map(|path| path.iter().next().unwrap().to_str().unwrap().to_string())
    };
    rekindle.reached("module-ahead");
    let image = read().unwrap();
    // It would never end if it waited.
    let removes = rekindle.command(&["rmi", &image]).spawn().unwrap();
    assert!(end_of(removes).status.success());
    assert!(is_alive(loads), "it loads still");
    kill(loads, 9);
    waiting(&rekindle, 0);
    rekindle.assert_tidy();
}

#[test]
fn as_many_bytes_are_loaded_as_were_allowed_and_those_used_most_come_first() {
    let rekindle = started("800");
    image(&rekindle, "first", &["1", "2", "3"]);
    image(&rekindle, "second", &["2", "3"]);
    image(&rekindle, "third", &["3", "5"]);
    assert!(waiting(&rekindle, 2) <= 800);
    assert_eq!(restored(&rekindle, "third", "third-again", &["3", "5"]), (1, 1));
    let none = started("0");
    image(&none, "first", &["1", "2"]);
    image(&none, "second", &["1", "2"]);
    assert_eq!(restored(&none, "second", "second-again", &["1", "2"]), (0, 2));
    assert_eq!(waiting(&none, 0), 0);
}

#[test]
fn an_image_that_was_restored_twice_counts_for_a_daemon_that_knows_only_the_store() {
    let rekindle = started("1M");
    image(&rekindle, "only", &["1", "2"]);
    assert_eq!(restored(&rekindle, "only", "one", &["1", "2"]), (0, 2));
    assert_eq!(restored(&rekindle, "only", "two", &["1", "2"]), (0, 2));
    waiting(&rekindle, 2);
    // The same kernels of other modules are others.
    image(&rekindle, "other", &["1", "12"]);
    rekindle.ok(&["kill", "--signal", "9", "one", "two"]);
    rekindle.ok(&["shutdown"]);
    waiting(&rekindle, 2);
    assert_eq!(restored(&rekindle, "other", "other-again", &["1", "12"]), (1, 1));
}

#[test]
fn images_are_removed_and_workers_killed_while_modules_are_loaded_ahead() {
    let rekindle = started("1M");
    let modules: Vec<String> = (1..30).map(|number| number.to_string()).collect();
    let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
    image(&rekindle, "stays", &modules);
    for _ in 0..3 {
        image(&rekindle, "goes", &modules);
        rekindle.ok(&["rmi", "goes"]);
    }
    waiting(&rekindle, 0);
    image(&rekindle, "goes", &modules);
    for _ in 0..3 {
        let waits = rekindle.pool(1)[0];
        kill(waits, 9);
        wait("another one", || rekindle.pool(1)[0] != waits);
    }
    waiting(&rekindle, modules.len() as u64);
    assert_eq!(restored(&rekindle, "goes", "goes-again", &modules), (modules.len() as u64, 0));
    rekindle.assert_tidy();
}
