//! Images with weights, and where a restore has found them.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Rekindle, wait};

pub const WEIGHTS: [&str; 2] = ["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/weights.py")];
pub const MEGABYTE: u64 = 1 << 20;

/// A program with weights of its own, for each seed others, taken as an image and stopped.
pub fn image(rekindle: &Rekindle, name: &str, seed: &str) {
    image_of(rekindle, name, &[seed]);
}

pub fn image_of(rekindle: &Rekindle, name: &str, arguments: &[&str]) {
    rekindle.start(name, &[&WEIGHTS[..], arguments].concat());
    rekindle.goes_on(name);
    rekindle.ok(&["checkpoint", name, "--to", name, "--stop"]);
}

/// Restores an image, sees the program find its weights as they were, and ends it. Where its GPU memory came from.
pub fn restore(rekindle: &Rekindle, image: &str) -> Value {
    let name = format!("{image}-again");
    rekindle.ok(&["restore", image, "-d", "--name", &name]);
    rekindle.goes_on(&name);
    let from = loaded_from(rekindle, &name);
    rekindle.ok(&["kill", &name]);
    from
}

pub fn loaded_from(rekindle: &Rekindle, name: &str) -> Value {
    let picture = rekindle.path("picture.svg");
    let mut from = Value::Null;
    wait("the trace's end", || {
        let trace = rekindle.json(&["trace", name, "--svg", picture.to_str().unwrap()]);
        let last = trace["traces"].as_array().unwrap().last().unwrap().clone();
        let loading = last["phases"].as_array().unwrap().iter().find(|phase| phase["name"] == "GPU memory");
        from = loading.map_or(Value::Null, |phase| phase["from"].clone());
        !from.is_null()
    });
    from
}

pub fn megabytes(from: &Value, place: &str) -> u64 {
    from[place].as_u64().unwrap_or_default() / MEGABYTE
}

/// From the page cache, or from the disk where the kernel has dropped some of that.
pub fn uncached(from: &Value) -> u64 {
    megabytes(from, "store") + megabytes(from, "disk")
}

/// How many megabytes of an image lie in this cache.
pub fn cached(rekindle: &Rekindle, image: &str, place: &str) -> u64 {
    let all = rekindle.json(&["images"]);
    let found = all["images"].as_array().unwrap().iter().find(|found| found["name"] == image).unwrap();
    let bytes =
        if place == "host" { &found["cached_bytes"]["host"] } else { &found["cached_bytes"]["gpus"][place] };
    bytes.as_u64().unwrap_or_default() / MEGABYTE
}

pub fn wait_cached(rekindle: &Rekindle, image: &str, place: &str, expected: u64) {
    wait(&format!("{expected} MB of {image} in {place}"), || cached(rekindle, image, place) == expected);
}

/// Nothing is being cached any more.
pub fn settled(rekindle: &Rekindle) -> Value {
    let held = || rekindle.json(&["images"])["caches"].clone();
    let (mut last, mut since) = (held(), Instant::now());
    while since.elapsed() < Duration::from_millis(400) {
        std::thread::sleep(Duration::from_millis(50));
        let now = held();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}
