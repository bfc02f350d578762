//! A daemon's settings in a file.

use std::fs;

use crate::harness::{Rekindle, wait};

fn checked(rekindle: &Rekindle, text: &str) -> (bool, String) {
    let file = rekindle.path("rekindled.toml");
    fs::write(&file, text).unwrap();
    let output = rekindle.daemon().arg("--check-config").arg("--config").arg(&file).output().unwrap();
    let said = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn a_file_is_checked_without_a_daemon() {
    let rekindle = Rekindle::new();
    let (is_fine, said) = checked(&rekindle, "log-max = '1M'\nstate = '/nowhere'\n[pool]\nworkers = 2\n");
    assert!(is_fine, "{said}");
    assert!(said.contains("pool.workers = \"2\" # from the file"), "{said}");
    // The variable wins.
    assert!(said.contains("# from the variable REKINDLE_STATE") && !said.contains("/nowhere"), "{said}");
    for (text, expected) in [
        ("[pool]\nworker = 2", "there is no setting \"pool.worker\""),
        ("log-max = 'much'", "log-max is \"much\", expected a number of bytes"),
        ("[pool", "it is no TOML"),
    ] {
        let (is_fine, said) = checked(&rekindle, text);
        assert!(!is_fine && said.starts_with("rekindled: ") && said.lines().count() == 1, "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let missing = rekindle.daemon().args(["--check-config", "--config", "/no/such/file"]).output().unwrap();
    assert!(!missing.status.success());
    assert!(rekindle.daemon_pid().is_none());
}

#[test]
fn a_daemon_has_what_the_file_says_and_commands_find_it() {
    let rekindle = Rekindle::new();
    let (file, socket) = (rekindle.path("rekindled.toml"), rekindle.path("elsewhere.sock"));
    let text = format!("socket = {socket:?}\n[pool]\nworkers = 0\n");
    fs::write(&file, text).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = rekindle.command(arguments);
        command.env_remove("REKINDLE_SOCKET").env("REKINDLE_CONFIG", &file);
        command.output().unwrap()
    };
    let pool = |options: &[(&str, &str)]| {
        let mut command = rekindle.command(&["--json", "ps"]);
        command.env_remove("REKINDLE_SOCKET").env("REKINDLE_CONFIG", &file).envs(options.iter().copied());
        let output = command.output().unwrap();
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        all["pool"].as_array().unwrap().len()
    };
    assert!(command(&["ps"]).status.success() && socket.exists());
    assert_eq!(pool(&[]), 0);
    assert!(command(&["shutdown"]).status.success());
    // A variable wins over the file.
    wait("the workers", || pool(&[("REKINDLE_POOL", "2")]) == 2);
    assert!(command(&["shutdown"]).status.success());
    // Switches have one variable for all; one that there is not is named.
    fs::write(&file, "[gpu]\nshadow = false\ncode = 'whole'\n").unwrap();
    let checked = |tuning: &str| {
        let mut command = rekindle.daemon();
        command.arg("--check-config").env("REKINDLE_CONFIG", &file).env("REKINDLE_TUNING", tuning);
        command.output().unwrap()
    };
    let shown = String::from_utf8(checked("gpu.code=pieces").stdout).unwrap();
    assert!(shown.contains("gpu.code = \"pieces\" # from the variable REKINDLE_TUNING"), "{shown}");
    assert!(shown.contains("gpu.shadow = \"off\" # from the file"), "{shown}");
    let refused = String::from_utf8(checked("gpu.shadw=off").stderr).unwrap();
    assert!(refused.contains("gpu.shadw=off") && refused.lines().count() == 1, "{refused}");
    fs::write(&file, "[pool]\nworkers = 'none'").unwrap();
    let refused = String::from_utf8(command(&["ps"]).stderr).unwrap();
    assert!(refused.contains("pool.workers is \"none\"") && refused.lines().count() == 1, "{refused}");
}
