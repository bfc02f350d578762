//! Contents in pinned host memory and in GPU memory.

use std::fs;

use crate::caches::support::*;
use crate::harness::{self, Rekindle, wait};

#[test]
fn without_a_limit_nothing_is_cached() {
    let rekindle = Rekindle::new();
    image(&rekindle, "image", "7");
    let caches = settled(&rekindle);
    assert_eq!(caches["host"]["held_bytes"], 0);
    assert_eq!(caches["gpu_limit_bytes"], 0);
    assert_eq!(uncached(&restore(&rekindle, "image")), 6);
}

#[test]
fn an_image_is_loaded_from_host_memory() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "64M")]);
    image(&rekindle, "image", "7");
    wait_cached(&rekindle, "image", "host", 6);
    for _ in 0..3 {
        let from = restore(&rekindle, "image");
        assert_eq!((megabytes(&from, "host cache"), uncached(&from)), (6, 0), "{from}");
    }
    let table = rekindle.ok(&["images"]);
    assert!(table.contains("host 6.0 MiB"), "{table}");
}

#[test]
fn an_image_is_loaded_from_gpu_memory() {
    // With and without contents in host memory to fill it from.
    for host in ["0", "64M"] {
        let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", host), ("REKINDLE_GPU_CACHE", "64M")]);
        image(&rekindle, "image", "7");
        wait_cached(&rekindle, "image", "emulated", 6);
        for _ in 0..3 {
            let from = restore(&rekindle, "image");
            assert_eq!((megabytes(&from, "GPU cache"), uncached(&from)), (6, 0), "{from}");
        }
        assert!(rekindle.ok(&["images"]).contains("emulated 6.0 MiB"));
        rekindle.assert_tidy();
    }
}

#[test]
fn without_workers_that_wait_an_image_is_loaded_from_either_memory() {
    for (variable, place, source) in
        [("REKINDLE_HOST_CACHE", "host", "host cache"), ("REKINDLE_GPU_CACHE", "emulated", "GPU cache")]
    {
        let rekindle = Rekindle::with(&[(variable, "64M"), ("REKINDLE_POOL", "0")]);
        image(&rekindle, "image", "7");
        wait_cached(&rekindle, "image", place, 6);
        assert_eq!(megabytes(&restore(&rekindle, "image"), source), 6);
    }
}

#[test]
fn a_limit_below_an_image_holds_as_much_of_it_as_fits() {
    for (variable, place, source) in
        [("REKINDLE_HOST_CACHE", "host", "host cache"), ("REKINDLE_GPU_CACHE", "emulated", "GPU cache")]
    {
        let rekindle = Rekindle::with(&[(variable, "5M")]);
        image(&rekindle, "image", "7");
        wait_cached(&rekindle, "image", place, 4);
        let from = restore(&rekindle, "image");
        assert_eq!((megabytes(&from, source), uncached(&from)), (4, 2), "{from}");
        wait_cached(&rekindle, "image", place, 4);
    }
}

#[test]
fn equal_content_is_held_once() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "64M"), ("REKINDLE_GPU_CACHE", "64M")]);
    for name in ["one", "same"] {
        image(&rekindle, name, "7");
        wait_cached(&rekindle, name, "host", 6);
        wait_cached(&rekindle, name, "emulated", 6);
    }
    let caches = settled(&rekindle);
    assert_eq!(caches["host"]["used_bytes"], 6 * MEGABYTE);
    assert_eq!(caches["gpus"]["emulated"]["used_bytes"], 6 * MEGABYTE);
}

#[test]
fn what_was_used_longest_ago_gives_way_and_what_was_removed_before_that() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "12M")]);
    for (name, seed) in [("old", "1"), ("removed", "2")] {
        image(&rekindle, name, seed);
        wait_cached(&rekindle, name, "host", 6);
    }
    rekindle.ok(&["rmi", "removed"]);
    image(&rekindle, "third", "3");
    wait_cached(&rekindle, "third", "host", 6);
    assert_eq!(cached(&rekindle, "old", "host"), 6);
    // Both were made and never restored; now the older one is.
    assert_eq!(megabytes(&restore(&rekindle, "old"), "host cache"), 6);
    settled(&rekindle);
    image(&rekindle, "fourth", "4");
    wait_cached(&rekindle, "fourth", "host", 6);
    assert_eq!((cached(&rekindle, "old", "host"), cached(&rekindle, "third", "host")), (6, 0));
    assert_eq!(uncached(&restore(&rekindle, "third")), 6);
}

#[test]
fn an_image_can_be_removed_while_it_is_cached_and_restored() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "64M"), ("REKINDLE_GPU_CACHE", "64M")]);
    for round in 0..4 {
        image(&rekindle, "image", "7");
        if round > 1 {
            wait_cached(&rekindle, "image", "emulated", 6);
        }
        let restores: Vec<_> = (0..2)
            .map(|n| {
                let name = format!("raced-{round}-{n}");
                rekindle.command(&["restore", "image", "-d", "--name", &name]).spawn().unwrap()
            })
            .collect();
        // In use, perhaps, but never half gone.
        wait("its removal", || rekindle.output(&["rmi", "image"]).status.success());
        for (n, restored) in restores.into_iter().enumerate() {
            let name = format!("raced-{round}-{n}");
            if harness::end_of(restored).status.success() {
                rekindle.goes_on(&name);
                rekindle.ok(&["kill", &name]);
            }
        }
    }
    rekindle.assert_tidy();
}

#[test]
fn what_is_damaged_is_not_cached() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "64M"), ("REKINDLE_GPU_CACHE", "64M")]);
    image(&rekindle, "image", "7");
    wait_cached(&rekindle, "image", "emulated", 6);
    // The next daemon has nothing cached, and reads the image anew.
    rekindle.ok(&["shutdown"]);
    let chunk = rekindle.large_chunks().remove(1);
    let mut damaged = fs::read(&chunk).unwrap();
    damaged[12_345] ^= 1;
    fs::write(&chunk, &damaged).unwrap();
    let output = rekindle.output(&["restore", "image", "-d", "--name", "damaged"]);
    if output.status.success() {
        wait("its end", || rekindle.sandbox("damaged")["pid"] == 0);
        assert!(rekindle.lines("damaged").iter().all(|line| line.parse::<u64>().is_err()));
    }
    settled(&rekindle);
    assert!(cached(&rekindle, "image", "host") < 6 && cached(&rekindle, "image", "emulated") < 6);
}

#[test]
fn a_gpu_without_room_for_a_cache_is_restored_to_all_the_same() {
    // Each worker has this much to itself: an image and a view of the cache do not fit side by side.
    let rekindle = Rekindle::with(&[("REKINDLE_GPU_CACHE", "64M"), ("REKINDLE_EMULATED", "memory=64M")]);
    rekindle.start("image", &[&WEIGHTS[..], &["7", "60"]].concat());
    rekindle.goes_on("image");
    rekindle.ok(&["checkpoint", "image", "--to", "image", "--stop"]);
    settled(&rekindle);
    assert_eq!(cached(&rekindle, "image", "emulated"), 0, "the last memory is the image's own");
    assert_eq!(uncached(&restore(&rekindle, "image")), 60);
}
