//! Contents of GPU memory hashed by the GPU. On a real one that is the faster way; the emulated one does it when told to.

use std::fs;
use std::path::Path;

use crate::harness::{Rekindle, wait};

const WEIGHTS: [&str; 2] = ["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/weights.py")];

#[test]
fn images_are_the_same_whoever_hashes() {
    for (saves, loads) in [("on", "on"), ("on", "off"), ("off", "on")] {
        let mut rekindle = Rekindle::new();
        rekindle.set_environment("REKINDLE_GPU_HASH", saves);
        rekindle.start("weights", &WEIGHTS);
        rekindle.goes_on("weights");
        rekindle.ok(&["checkpoint", "weights", "--to", "image", "--stop"]);
        assert_eq!(rekindle.json(&["verify", "image"])["sound"], true);
        assert_eq!(rekindle.large_chunks().len(), 3);
        rekindle.ok(&["shutdown"]);
        rekindle.set_environment("REKINDLE_GPU_HASH", loads);
        rekindle.ok(&["restore", "image", "-d", "--name", "again"]);
        rekindle.goes_on("again");
        rekindle.ok(&["checkpoint", "again", "--to", "another", "--stop"]);
        assert_eq!(rekindle.large_chunks().len(), 3, "the same contents, kept once");
    }
}

#[test]
fn a_flipped_bit_is_seen_by_the_gpu() {
    let mut rekindle = Rekindle::new();
    rekindle.set_environment("REKINDLE_GPU_HASH", "on");
    // The program looks at its memory when it is told to. The image is of one that waits for that, with nothing seen
    // and not yet printed.
    let look = rekindle.path("look");
    let look_name = look.to_str().unwrap();
    rekindle.start("weights", &[WEIGHTS[0], WEIGHTS[1], "7", "6", look_name]);
    looks(&rekindle, "weights", &look);
    rekindle.ok(&["checkpoint", "weights", "--to", "image", "--stop"]);
    for (chunk, at) in rekindle.large_chunks().iter().zip([0, 1_234_567, (2 << 20) - 1]) {
        let sound = fs::read(chunk).unwrap();
        let mut damaged = sound.clone();
        damaged[at] ^= 1;
        fs::write(chunk, damaged).unwrap();
        fs::write(&look, "").unwrap();
        let output = rekindle.output(&["restore", "image", "-d", "--name", "damaged"]);
        let problem = match output.status.success() {
            // It ran before all was there: it has been ended before it saw any of it.
            true => {
                wait("the end", || rekindle.sandbox("damaged")["pid"] == 0);
                assert!(rekindle.lines("damaged").iter().all(|line| line.parse::<u64>().is_err()));
                rekindle.sandbox("damaged")["problem"].as_str().unwrap().to_string()
            }
            false => String::from_utf8(output.stderr).unwrap(),
        };
        assert!(look.exists(), "it has seen its memory");
        let name = chunk.file_name().unwrap().to_str().unwrap();
        assert!(problem.contains(name) && problem.contains("hash"), "{problem}");
        assert!(problem.contains("image"), "{problem}");
        fs::write(chunk, sound).unwrap();
        fs::remove_file(&look).unwrap();
    }
    rekindle.ok(&["restore", "image", "-d", "--name", "again"]);
    looks(&rekindle, "again", &look);
    rekindle.assert_tidy();
}

/// Has the program look at its memory, and waits until it has printed that it did.
fn looks(rekindle: &Rekindle, name: &str, look: &Path) {
    let before = rekindle.count(name).len();
    fs::write(look, "").unwrap();
    wait("a look at the memory", || rekindle.count(name).len() > before && !look.exists());
}
