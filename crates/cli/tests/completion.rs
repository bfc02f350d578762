//! What bash completes, by the script that it is given.

use std::process::{Command, Stdio};

use crate::harness::{Rekindle, wait};

/// Has bash complete the last of the words behind `rekindle`.
const COMPLETE: &str = r#"source <(rekindle completions bash)
COMP_WORDS=(rekindle "$@") COMP_CWORD=$# COMP_TYPE=9
_clap_complete_rekindle rekindle "${@: -1}" before
printf '%s\n' "${COMPREPLY[@]}""#;

fn completed(rekindle: &Rekindle, words: &[&str]) -> Vec<String> {
    let like = rekindle.command(&[]);
    let here = std::path::Path::new(like.get_program()).parent().unwrap();
    let path = format!("{}:{}", here.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", COMPLETE, "bash"]).args(words).env("PATH", path).stdin(Stdio::null());
    command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let words = said.lines().filter(|word| !word.is_empty() && !word.starts_with('-'));
    words.map(str::to_string).collect()
}

/// A shell does not wait long for names: a daemon that is slow to say them is asked again.
fn completes(rekindle: &Rekindle, words: &[&str], expected: &[&str]) {
    wait(&format!("{words:?} to be completed by {expected:?}"), || completed(rekindle, words) == expected);
}

#[test]
fn names_of_sandboxes_and_images_are_completed() {
    let rekindle = Rekindle::new();
    assert_eq!(completed(&rekindle, &["kill", ""]), [""; 0]);
    assert!(!rekindle.path("socket").exists(), "no daemon is started for it");
    assert_eq!(completed(&rekindle, &["checkp"]), ["checkpoint"]);

    rekindle.start("job-one", &["sleep", "1000"]);
    rekindle.start("job-two", &["true"]);
    rekindle.start("job; reboot", &["sleep", "1000"]);
    wait("the end of one", || rekindle.sandbox("job-two")["pid"] == 0);
    rekindle.ok(&["checkpoint", "job-one", "--to", "jobs", "--leave-running"]);
    for (words, expected) in [
        (&["kill", ""][..], &["job-one"][..]),
        (&["checkpoint", "jo"], &["job-one"]),
        (&["logs", "job"], &["job-one", "job-two"]),
        (&["logs", "job-t"], &["job-two"]),
        (&["rm", ""], &["job-two", "jobs"]),
        (&["restore", ""], &["jobs"]),
        (&["run", "--from", "j"], &["jobs"]),
        (&["restore", "x"], &[]),
    ] {
        completes(&rekindle, words, expected);
    }
    // Another daemon's names are those of the line.
    let other = Rekindle::new();
    let socket = rekindle.path("socket").display().to_string();
    completes(&other, &["--socket", &socket, "kill", ""], &["job-one"]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(rekindle.ok(&["completions", shell]).contains("REKINDLE_COMPLETE"), "{shell}");
    }
}
