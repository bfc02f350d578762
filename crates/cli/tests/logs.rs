//! What programs print: kept over restores, whole over checkpoints, and no more of it than may be.

mod harness;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;

use harness::{COUNTER, Rekindle, end_of, wait};

/// Prints numbers as fast as it can.
const FLOOD: [&str; 4] = ["python3", "-u", "-c", "n = 0\nwhile True:\n    print(n)\n    n += 1"];

fn whole_log(rekindle: &Rekindle, name: &str) -> Vec<String> {
    rekindle.ok(&["logs", "--", name]).lines().map(str::to_string).collect()
}

/// The files of programs' logs.
fn log_files(rekindle: &Rekindle) -> Vec<PathBuf> {
    let all = std::fs::read_dir(rekindle.path("state/logs")).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    all.filter(|path| name(path).ends_with(".log") && name(path).matches('.').count() == 1)
        .filter(|path| !["pool", "last", "driver"].iter().any(|stem| name(path).starts_with(stem)))
        .collect()
}

#[test]
fn a_log_goes_on_when_its_program_is_restored_under_its_name() {
    let mut rekindle = Rekindle::new();
    rekindle.start("train", &COUNTER);
    rekindle.goes_on("train");
    rekindle.ok(&["checkpoint", "train", "--to", "warm", "--leave-running"]);
    rekindle.goes_on("train");
    rekindle.ok(&["kill", "--signal", "9", "train"]);
    wait("its end", || rekindle.sandbox("train")["pid"] == 0);
    let first = whole_log(&rekindle, "train");
    assert!(first.len() > 6 && first[0] == "0", "{first:?}");

    // A restore that fails leaves the ended one with its log.
    rekindle.set_fault(Some("restore-complete:fail"));
    rekindle.refused(&["restore", "warm", "-d"]);
    assert_eq!(rekindle.sandbox("train")["state"], "killed");
    assert_eq!(whole_log(&rekindle, "train")[..first.len()], first);

    // One that a daemon does not survive leaves the log too.
    rekindle.set_fault(Some("restore-complete:kill"));
    rekindle.refused(&["restore", "warm", "-d"]);
    rekindle.set_fault(None);
    assert_eq!(whole_log(&rekindle, "train")[..first.len()], first);

    rekindle.ok(&["restore", "warm", "-d"]);
    rekindle.goes_on("train");
    let all = whole_log(&rekindle, "train");
    assert_eq!(all[..first.len()], first);
    let marker = all.iter().rposition(|line| line.starts_with("--- rekindle: restored")).unwrap();
    assert!(all[marker].contains("\"warm\" at 2"), "{}", all[marker]);
    let again: u64 = all[marker + 1].parse().unwrap();
    assert!((3..first.len() as u64).contains(&again), "it goes on after the checkpoint: {again}");
    assert_eq!(log_files(&rekindle).len(), 1);

    // A new program of that name begins a log of its own; a restore in the foreground shows what is its own.
    rekindle.ok(&["kill", "--signal", "9", "train"]);
    wait("its end", || rekindle.sandbox("train")["pid"] == 0);
    let shown = rekindle.command(&["restore", "warm"]).stdout(Stdio::piped()).spawn().unwrap();
    wait("the restored program", || rekindle.sandbox("train")["pid"] != 0);
    rekindle.goes_on("train");
    rekindle.ok(&["kill", "--signal", "9", "train"]);
    let shown = String::from_utf8(end_of(shown).stdout).unwrap();
    assert!(shown.starts_with(&format!("{again}\n")), "{shown}");
    rekindle.start("train", &["echo", "new"]);
    wait("its end", || rekindle.sandbox("train")["pid"] == 0);
    assert_eq!(whole_log(&rekindle, "train"), ["new"]);
    assert_eq!(log_files(&rekindle).len(), 1);
}

#[test]
fn no_line_is_lost_or_doubled_by_a_checkpoint_and_a_restore() {
    let rekindle = Rekindle::with(&[("REKINDLE_LOG_MAX", "0")]);
    rekindle.start("flood", &FLOOD);
    for image in ["one", "two"] {
        wait("it to print", || rekindle.lines("flood").len() > 20_000);
        rekindle.ok(&["checkpoint", "flood", "--to", image, "--stop"]);
        rekindle.ok(&["restore", image, "-d"]);
    }
    rekindle.ok(&["checkpoint", "flood", "--to", "three", "--leave-running"]);
    wait("it to go on", || rekindle.lines("flood").len() > 20_000);
    rekindle.ok(&["kill", "--signal", "9", "flood"]);
    let mut all = whole_log(&rekindle, "flood");
    all.pop();
    all.retain(|line| !line.starts_with("---") && !line.is_empty());
    let wrong = all.iter().enumerate().find(|(number, line)| line.parse() != Ok(*number));
    assert_eq!(wrong, None);
}

#[test]
fn a_log_takes_no_more_room_than_it_may() {
    const LIMIT: u64 = 1 << 20;
    let rekindle = Rekindle::with(&[("REKINDLE_LOG_MAX", "1M")]);
    let go = rekindle.path("go");
    let code = format!(
        "import os, time\nfor n in range(1000000, 2000000): print(n)\nprint('all', flush=True)\nwhile not os.path.exists({:?}): time.sleep(0.01)\nprint('end')",
        go.to_str().unwrap()
    );
    rekindle.start("flood", &["python3", "-c", &code]);
    let follower = rekindle.command(&["logs", "-f", "flood"]).stdout(Stdio::piped()).spawn().unwrap();
    let reader = std::thread::spawn(move || end_of_reading(follower));
    wait("all to be printed", || rekindle.lines("flood").last().is_some_and(|line| line == "all"));
    let lines = rekindle.lines("flood");
    let numbers: Vec<u64> = lines[..lines.len() - 1].iter().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.last(), Some(&1_999_999));
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
    let kept = numbers.len() as u64 * 8;
    assert!(kept > LIMIT / 2 && kept <= LIMIT, "{kept}");
    let files = log_files(&rekindle);
    assert_eq!(files.len(), 1);
    let taken = files[0].metadata().unwrap().blocks() * 512;
    assert!(taken <= LIMIT + (1 << 18), "{taken}");
    std::fs::write(go, "").unwrap();
    assert!(reader.join().unwrap().ends_with("1999999\nall\nend\n"));
}

fn end_of_reading(child: std::process::Child) -> String {
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}
