//! Images as one file, and under several names.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use crate::harness::{GPU_COUNTER, Rekindle, end_of, wait};

#[test]
fn an_image_goes_to_another_state_and_its_program_goes_on_there() {
    let rekindle = Rekindle::new();
    rekindle.start("counter", &GPU_COUNTER);
    rekindle.goes_on("counter");
    rekindle.ok(&["checkpoint", "counter", "--to", "warm", "--stop"]);
    let (other, file) = (Rekindle::new(), rekindle.path("warm.tar"));
    let file = file.to_str().unwrap();
    rekindle.ok(&["export", "warm", file]);
    assert_eq!(other.ok(&["import", file]), "warm\n");
    // By way of a pipe, and under another name.
    let mut import = other.command(&["import", "-", "again"]).stdin(Stdio::piped()).spawn().unwrap();
    let bytes = rekindle.output(&["export", "warm", "-"]).stdout;
    assert!(bytes == fs::read(file).unwrap(), "an image has one archive");
    import.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(end_of(import).status.success());
    assert_eq!(other.images(), ["again", "warm"]);
    let before = *rekindle.count("counter").last().unwrap();
    for image in ["warm", "again"] {
        assert!(other.json(&["verify", image])["sound"] == true);
        other.ok(&["restore", image, "--name", image, "-d"]);
        other.goes_on(image);
        assert!(other.count(image)[0] >= before, "it goes on where it was");
    }
    assert!(other.refused(&["import", file]).contains("\"warm\" already exists"));
    assert!(rekindle.refused(&["export", "nothing", file]).contains("\"nothing\""));
    assert!(rekindle.refused(&["export", "warm", "/no/such/place/x"]).contains("/no/such/place"));
    assert!(rekindle.refused(&["import", "/no/such/file"]).contains("/no/such/file"));
    // What fails leaves nothing, and nothing of what was there is lost.
    fs::write(rekindle.path("cut.tar"), &bytes[..bytes.len() / 2]).unwrap();
    let cut = rekindle.path("cut.tar");
    assert!(other.refused(&["import", cut.to_str().unwrap(), "cut"]).contains("cannot be imported"));
    assert_eq!(other.images(), ["again", "warm"]);
    other.assert_tidy();
    let left = fs::read_dir(rekindle.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().contains("partial")));
}

#[test]
fn an_image_with_another_name_is_an_image_of_its_own() {
    let rekindle = Rekindle::new();
    rekindle.start("counter", &GPU_COUNTER);
    rekindle.goes_on("counter");
    rekindle.ok(&["checkpoint", "counter", "--to", "first", "--stop"]);
    rekindle.ok(&["tag", "first", "second"]);
    let stored = |name: &str| rekindle.json(&["inspect", name])["sizes"]["stored"].clone();
    assert_eq!(stored("first"), stored("second"));
    assert!(rekindle.refused(&["tag", "first", "second"]).contains("\"second\" already exists"));
    assert!(rekindle.refused(&["tag", "nothing", "third"]).contains("\"nothing\""));
    rekindle.ok(&["rmi", "first"]);
    rekindle.ok(&["restore", "second", "-d"]);
    rekindle.goes_on("counter");
    rekindle.ok(&["rmi", "second"]);
    rekindle.goes_on("counter");
    rekindle.ok(&["kill", "--signal", "9", "counter"]);
    wait("its end", || rekindle.sandbox("counter")["pid"] == 0);
    assert!(rekindle.images().is_empty() && rekindle.large_chunks().is_empty());
}
