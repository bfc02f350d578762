//! What programs print: kept over restores, whole over checkpoints, and no more of it than may be.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;

use crate::harness::{COUNTER, Rekindle, end_of, is_alive, wait};
use serde_json::Value;

/// Prints numbers as fast as it can.
const FLOOD: [&str; 3] = ["python3", "-c", "n = 0\nwhile True:\n    print(n, flush=True)\n    n += 1"];

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

/// Prints to both outputs, without end.
const BOTH: [&str; 3] = [
    "python3",
    "-c",
    "import sys, time\nn = 0\nwhile True:\n    print('out', n, flush=True)\n    print('err', n, file=sys.stderr)\n    n += 1\n    time.sleep(0.02)",
];

fn lines_of(rekindle: &Rekindle, options: &[&str]) -> Vec<Value> {
    let all = rekindle.json(&[&["logs"], options].concat());
    let lines = all["lines"].as_array().unwrap().clone();
    let log = all["log"].as_str().unwrap();
    let texts: Vec<_> = lines.iter().map(|line| line["text"].as_str().unwrap()).collect();
    assert_eq!(log.lines().count(), texts.len(), "{log}");
    lines
}

#[test]
fn both_outputs_are_told_apart_with_their_times_before_and_after_a_restore() {
    let rekindle = Rekindle::new();
    rekindle.start("both", &BOTH);
    wait("it to print", || rekindle.lines("both").len() > 10);
    rekindle.ok(&["checkpoint", "both", "--to", "image", "--stop"]);
    let prints = |image: &str| {
        rekindle.ok(&["restore", image, "-d"]);
        let before = rekindle.lines("both").len();
        wait("it to go on", || rekindle.lines("both").len() > before + 20);
    };
    prints("image");
    rekindle.ok(&["checkpoint", "both", "--to", "again", "--stop"]);
    prints("again");
    rekindle.ok(&["kill", "--signal", "9", "both"]);
    wait("its end", || rekindle.sandbox("both")["pid"] == 0);
    let (mut counted, mut last, mut markers) = ([0, 0], String::new(), 0);
    for line in lines_of(&rekindle, &["both"]) {
        let (text, stream) = (line["text"].as_str().unwrap(), line["stream"].as_str().unwrap());
        let time = line["time"].as_str().unwrap_or_else(|| panic!("without a time: {line}")).to_string();
        assert!(time >= last, "{line} after {last}");
        last = time;
        let number = |prefix| text.strip_prefix(prefix).and_then(|number| number.parse::<u64>().ok());
        match (stream, number("out "), number("err ")) {
            ("stdout", Some(number), _) => assert_eq!(number, std::mem::replace(&mut counted[0], number + 1)),
            ("stderr", _, Some(number)) => assert_eq!(number, std::mem::replace(&mut counted[1], number + 1)),
            ("rekindle", ..) => markers += usize::from(text.starts_with("--- rekindle: restored")),
            _ => panic!("{line}"),
        }
    }
    assert!(markers == 2 && counted[0] > 20 && counted[0].abs_diff(counted[1]) <= 1, "{markers} {counted:?}");
}

#[test]
fn the_last_lines_and_those_since_a_time_are_shown() {
    let rekindle = Rekindle::new();
    let go = rekindle.path("go");
    let code = format!(
        "echo one; echo two; while [ ! -e {go} ]; do sleep 0.02; done; echo three; printf four",
        go = go.to_str().unwrap()
    );
    rekindle.start("sh", &["sh", "-c", &code]);
    wait("the first lines", || rekindle.lines("sh").len() == 2);
    assert_eq!(rekindle.ok(&["logs", "--tail", "1", "sh"]), "two\n");
    let follower =
        rekindle.command(&["logs", "-f", "-n", "1", "-t", "sh"]).stdout(Stdio::piped()).spawn().unwrap();
    std::fs::write(&go, "").unwrap();
    wait("its end", || rekindle.sandbox("sh")["pid"] == 0);
    let followed = end_of_reading(follower);
    let texts: Vec<_> = followed.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    // By when it came the last line may have been another one.
    assert!(["two", "three", "four"].ends_with(&texts) && !texts.is_empty(), "{followed}");
    assert_eq!(rekindle.ok(&["logs", "-n", "3", "sh"]), "two\nthree\nfour");
    assert_eq!(rekindle.ok(&["logs", "-n", "0", "sh"]), "");
    assert_eq!(rekindle.ok(&["logs", "-n", "99", "sh"]), "one\ntwo\nthree\nfour");

    let all = lines_of(&rekindle, &["sh"]);
    let time = |at: usize| all[at]["time"].as_str().unwrap();
    assert_eq!(rekindle.ok(&["logs", "--since", time(2), "sh"]), "three\nfour");
    assert_eq!(rekindle.ok(&["logs", "--since", time(0), "-n", "3", "sh"]), "two\nthree\nfour");
    assert_eq!(rekindle.ok(&["logs", "--since", "2999-01-01T00:00:00Z", "sh"]), "");
    assert_eq!(rekindle.ok(&["logs", "--since", "24h", "sh"]), "one\ntwo\nthree\nfour");
    assert_eq!(rekindle.output(&["logs", "--since", "yesterday", "sh"]).status.code(), Some(2));
    let stamped = rekindle.ok(&["logs", "-t", "sh"]);
    assert_eq!(stamped.lines().last(), Some(&*format!("{} four", time(3))));

    // A log without an index, as of an earlier version, is shown all the same.
    let index = log_files(&rekindle)[0].with_extension("index");
    std::fs::remove_file(index).unwrap();
    assert_eq!(rekindle.ok(&["logs", "-t", "sh"]), "- one\n- two\n- three\n- four\n");
}

#[test]
fn the_index_of_a_log_is_bounded_too_and_what_is_kept_has_its_time() {
    const LIMIT: u64 = 1 << 20;
    let rekindle = Rekindle::with(&[("REKINDLE_LOG_MAX", "1M")]);
    // Each stretch is long enough for the index to keep as much as the log does.
    let code = "import sys\n\
        for n in range(1000000, 1400000, 100):\n\
        \x20   sys.stdout.write('\\n'.join(map(str, range(n, n + 100))) + '\\n')\n\
        print('all', flush=True)";
    rekindle.start("flood", &["python3", "-c", code]);
    wait("its end", || rekindle.sandbox("flood")["pid"] == 0);
    let lines = lines_of(&rekindle, &["flood"]);
    let numbers =
        lines[..lines.len() - 1].iter().map(|line| line["text"].as_str().unwrap().parse::<u64>().unwrap());
    let numbers: Vec<_> = numbers.collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1) && numbers.last() == Some(&1_399_999));
    let other = lines.iter().find(|line| !line["time"].is_string() || line["stream"] != "stdout");
    assert_eq!(other, None);
    let index = log_files(&rekindle)[0].with_extension("index");
    let taken = index.metadata().unwrap().blocks() * 512;
    assert!(taken > 0 && taken <= LIMIT / 2 + (128 << 10), "{taken}");
}

fn end_of_reading(child: std::process::Child) -> String {
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn what_a_program_prints_as_its_last_is_in_its_log() {
    let mut rekindle = Rekindle::new();
    rekindle.set_fault(Some("reaping:hang"));
    let go = rekindle.path("go");
    let code = format!("while [ ! -e {} ]; do sleep 0.01; done; echo said", go.display());
    rekindle.start("late", &["sh", "-c", &code]);
    // Init has looked at what was printed so far, and is about to look for ends.
    rekindle.reached("reaping");
    let program = rekindle.sandbox("late")["pid"].as_i64().unwrap() as i32;
    std::fs::write(&go, "").unwrap();
    wait("its end", || !is_alive(program));
    rekindle.let_go("reaping");
    wait("its end to be told", || rekindle.sandbox("late")["pid"] == 0);
    assert_eq!(whole_log(&rekindle, "late"), ["said"]);
}
