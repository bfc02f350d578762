//! Programs without a GPU: running, listing, following, ending; names; what the commands print.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::harness::{COUNTER, Rekindle, end_of, is_alive, kill, wait};

#[test]
fn the_foreground_shows_output_and_passes_the_exit_code_on() {
    let rekindle = Rekindle::new();
    let output = rekindle.output(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    // Two pipes: which of them is emptied first is not told.
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(["out\nerr\n", "err\nout\n"].contains(&&*said), "{said}");
    let output = rekindle.output(&["run", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(128 + 9));
    let output = rekindle.output(&["run", "--json", "--name", "n", "--", "sh", "-c", "echo out; exit 3"]);
    let ended: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&ended["state"], &ended["exit_code"]), (&"exited".into(), &3.into()));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "out\n");
}

#[test]
fn a_program_keeps_its_directory_environment_and_arguments() {
    let rekindle = Rekindle::new();
    let output = rekindle
        .command(&["run", "--", "sh", "-c", "echo \"$PWD|$FLAVOUR|$1|$REKINDLE_RUN\"", "sh", "a b $(c)"])
        .current_dir("/usr")
        .env("FLAVOUR", "sour")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "/usr|sour|a b $(c)|/run/rekindle\n");
}

#[test]
fn a_program_that_is_missing_or_cannot_be_executed_ends_the_command_as_a_shell_does() {
    let rekindle = Rekindle::new();
    let file = |name: &str, text: &str, mode: u32| {
        let path = rekindle.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_string()
    };
    let cases = [
        ("/no/such/program".to_string(), 127, "no program /no/such/program"),
        ("no-such-program".to_string(), 127, "no program no-such-program in PATH"),
        (file("plain", "echo\n", 0o644), 126, "plain is not executable"),
        (file("nothing", "not a program", 0o755), 126, "first line such as #!/bin/sh"),
        (file("lost", "#!/no/such/interpreter\n", 0o755), 127, "does not exist"),
        ("/usr".to_string(), 126, "is a directory"),
    ];
    for (program, code, said) in cases {
        for arguments in [&["run", "--", &program][..], &["run", "-d", "--", &program]] {
            let output = rekindle.output(arguments);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
            assert!(error.starts_with("rekindle: ") && error.lines().count() == 1, "{error}");
            assert!(error.contains(said), "{error}");
        }
    }
    assert_eq!(rekindle.json(&["ps"])["sandboxes"], serde_json::json!([]));
    rekindle.assert_tidy();
}

#[test]
fn a_working_directory_that_is_gone_is_told_of_in_a_sentence() {
    let rekindle = Rekindle::new();
    rekindle.ok(&["ps"]);
    let (directory, gone) = (rekindle.path("here"), rekindle.path("elsewhere"));
    std::fs::create_dir(&directory).unwrap();
    let arguments = ["run", "-d", "--name", "n", "--", COUNTER[0], COUNTER[1], COUNTER[2]];
    let started = rekindle.command(&arguments).current_dir(&directory).status().unwrap();
    assert!(started.success());
    rekindle.goes_on("n");
    rekindle.ok(&["checkpoint", "n", "--to", "image", "--leave-running"]);
    std::fs::rename(&directory, &gone).unwrap();
    let error = rekindle.refused(&["restore", "image", "-d", "--name", "back"]);
    assert!(error.contains("here, the working directory of the program"), "{error}");
    assert!(!error.contains("CRIU") && !error.contains("criu"), "{error}");
    // As it is for a command whose own is gone.
    std::fs::create_dir(&directory).unwrap();
    let mut command = rekindle.command(&["run", "--", "true"]);
    let here = std::ffi::CString::new(directory.as_os_str().as_encoded_bytes()).unwrap();
    let leave = move || {
        // SAFETY: a system call each, between fork and exec.
        match unsafe { (libc::chdir(here.as_ptr()), libc::rmdir(here.as_ptr())) } {
            (0, 0) => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: see there.
    unsafe { command.pre_exec(leave) };
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("current directory") && error.lines().count() == 1, "{error}");
    std::fs::rename(&gone, &directory).unwrap();
    rekindle.ok(&["restore", "image", "-d", "--name", "back"]);
    rekindle.goes_on("back");
}

#[test]
fn a_daemon_with_other_directories_is_not_taken_for_the_one_that_is_meant() {
    let rekindle = Rekindle::new();
    rekindle.start("program", &["sleep", "60"]);
    let other = rekindle.path("other");
    for option in ["--state", "--run-dir"] {
        let error = rekindle.refused(&[option, other.to_str().unwrap(), "ps"]);
        let (socket, own) =
            (rekindle.path("socket"), rekindle.path(if option == "--state" { "state" } else { "runs" }));
        for part in [socket.to_str().unwrap(), own.to_str().unwrap(), other.to_str().unwrap(), "--socket"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
        let error = rekindle.refused(&[option, other.to_str().unwrap(), "shutdown"]);
        assert!(error.contains("and not"), "{error}");
        assert!(!other.exists());
    }
    // By another name it is the same one, and who names none means the daemon that answers.
    let link = rekindle.path("link");
    std::os::unix::fs::symlink(rekindle.path("state"), &link).unwrap();
    rekindle.ok(&["--state", link.to_str().unwrap(), "ps"]);
    let unnamed =
        rekindle.command(&["ps"]).env_remove("REKINDLE_STATE").env_remove("REKINDLE_RUN_ROOT").output();
    assert!(String::from_utf8_lossy(&unnamed.unwrap().stdout).contains("sleep 60"));
}

#[test]
fn a_gpu_that_does_not_exist_is_refused() {
    let rekindle = Rekindle::new();
    assert!(rekindle.refused(&["run", "--gpu", "quantum", "--", "true"]).contains("\"quantum\""));
    let error = rekindle.refused(&["run", "--gpu", "emulated:colour=red", "--", "true"]);
    assert!(error.contains("colour"), "{error}");
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        assert!(rekindle.refused(&["run", "--gpu", "nvidia", "--", "true"]).contains("no NVIDIA GPU"));
    }
    rekindle.assert_tidy();
}

#[test]
fn signals_reach_a_program_in_the_foreground() {
    let rekindle = Rekindle::new();
    rekindle.ok(&["ps"]);
    let code = "import signal, sys, time\nsignal.signal(2, lambda *_: (print('interrupted'), sys.exit(5)))\nprint('ready', flush=True)\ntime.sleep(60)";
    let child = rekindle
        .command(&["run", "--name", "s", "--", "python3", "-c", code])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    wait("the program", || rekindle.output(&["logs", "s"]).stdout == b"ready\n");
    kill(child.id() as i32, 2);
    let output = end_of(child);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\ninterrupted\n");
}

#[test]
fn logs_follow_to_the_end() {
    let rekindle = Rekindle::new();
    rekindle.start("f", &["sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.1; done"]);
    assert_eq!(rekindle.ok(&["logs", "-f", "f"]), "1\n2\n3\n");
    assert_eq!(rekindle.ok(&["logs", "f"]), "1\n2\n3\n");
    assert_eq!(rekindle.json(&["logs", "f"])["log"], "1\n2\n3\n");
    rekindle.start("endless", &COUNTER);
    let mut follower = rekindle.command(&["logs", "-f", "endless"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = [0; 8];
    follower.stdout.take().unwrap().read_exact(&mut seen).unwrap();
    follower.kill().unwrap();
    follower.wait().unwrap();
    assert!(seen.starts_with(b"0\n1\n2\n"));
}

#[test]
fn kill_ends_what_listens_to_sigterm_and_what_does_not() {
    let rekindle = Rekindle::new();
    rekindle.start("mild", &COUNTER);
    rekindle.start("stubborn", &["sh", "-c", "trap '' TERM; echo on; while :; do sleep 0.05; done"]);
    wait("the trap", || rekindle.lines("stubborn") == ["on"]);
    rekindle.ok(&["kill", "mild", "stubborn"]);
    assert_eq!(rekindle.sandbox("mild")["exit_code"], 128 + 15);
    assert_eq!(rekindle.sandbox("stubborn")["exit_code"], 128 + 9);
    assert!(rekindle.refused(&["kill", "mild"]).contains("not running"));
    rekindle.assert_tidy();
}

#[test]
fn names_may_be_anything_and_belong_to_one() {
    let rekindle = Rekindle::new();
    let names =
        ["a/b", "..", "$(touch x)", "a b;c|d&e", "'\"`\\", "%2e", "*?[", "ünï😀", "-dash", &"n".repeat(255)];
    for name in names {
        rekindle.start(name, &["sleep", "60"]);
        assert_eq!(rekindle.sandbox(name)["state"], "running");
        let flag = format!("--name={name}");
        assert!(rekindle.refused(&["run", "-d", &flag, "--", "true"]).contains("exists"));
    }
    assert_eq!(rekindle.json(&["ps", "-a"])["sandboxes"].as_array().unwrap().len(), names.len());
    for name in names {
        rekindle.ok(&["kill", "--signal", "9", "--", name]);
        wait("its end", || rekindle.sandbox(name)["pid"] == 0);
        rekindle.start(name, &["true"]);
    }
    assert!(rekindle.refused(&["run", "-d", "--name", "", "--", "true"]).contains("at least one"));
    assert!(rekindle.refused(&["run", "-d", "--name", "a\nb", "--", "true"]).contains("control"));
    for command in [["logs", "nobody"], ["kill", "nobody"]] {
        assert!(rekindle.refused(&command).contains("\"nobody\""));
    }
    let first = rekindle.ok(&["run", "-d", "--", "sleep", "0"]);
    assert_eq!(first, "sleep-1\n");
}

#[test]
fn what_ps_says_is_documented() {
    let rekindle = Rekindle::new();
    rekindle.start("p", &["sleep", "60"]);
    let documented =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md")).unwrap();
    for field in rekindle.sandbox("p").as_object().unwrap().keys() {
        assert!(documented.contains(&format!("`{field}`")), "{field} is not documented");
    }
    assert!(rekindle.ok(&["ps"]).contains("sleep 60"));
}

#[test]
fn a_daemon_is_private_and_alone() {
    let rekindle = Rekindle::new();
    rekindle.ok(&["ps"]);
    let mode = |name: &str| std::fs::metadata(rekindle.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode("socket"), mode("state"), mode("runs"), mode("state/store")),
        (0o600, 0o700, 0o700, 0o700)
    );
    let output = rekindle.daemon().output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("another daemon"), "{error}");
    let output = rekindle.daemon().env("REKINDLE_STATE", rekindle.path("other")).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("answers on"), "{error}");
}

#[test]
fn daemons_with_one_place_for_what_runs_leave_each_other_alone() {
    let first = Rekindle::new();
    first.start("one", &COUNTER);
    first.ok(&["run", "-d", "--name", "gpu", "--gpu", "emulated", "--", "sleep", "60"]);
    let pid = first.sandbox("one")["pid"].clone();
    let second = Rekindle::beside(&first);
    second.start("one", &COUNTER);
    let waiting = first.pool(1);
    // As it is with a daemon that looks for what one before it has left, whether the other one runs or not.
    for step in ["it runs", "it is dead", "there is a third one"] {
        if step == "it is dead" {
            first.kill_daemon();
        }
        second.ok(&["shutdown"]);
        wait("the daemon's end", || second.output(&["ps"]).status.success());
        second.goes_on("one");
        assert!(is_alive(pid.as_i64().unwrap() as i32), "{}", second.daemon_log());
        if step == "it runs" {
            assert!(is_alive(waiting[0]));
        }
        if step == "there is a third one" {
            // It finds what the first has left, which a record of its state tells of.
            first.goes_on("one");
            assert_eq!(first.sandbox("one")["pid"], pid);
        }
        let log = second.daemon_log();
        assert!(!log.contains("belongs to no sandbox"), "{log}");
    }
    // What no record tells of is removed by its own state's daemon, and by no other.
    first.kill_daemon();
    std::fs::remove_dir_all(first.path("state/sandboxes")).unwrap();
    second.ok(&["shutdown"]);
    second.goes_on("one");
    assert!(is_alive(pid.as_i64().unwrap() as i32));
    first.ok(&["ps"]);
    wait("the stray's end", || !is_alive(pid.as_i64().unwrap() as i32));
    second.goes_on("one");
    first.assert_tidy();
    second.assert_tidy();
}

#[test]
fn a_copied_state_is_another_one() {
    let first = Rekindle::new();
    first.start("one", &COUNTER);
    let second = Rekindle::beside(&first);
    // What the first daemon replaces just then may be gone when it is to be copied.
    wait("a whole copy", || {
        let _ = std::fs::remove_dir_all(second.path("state"));
        let mut copy = std::process::Command::new("cp");
        copy.arg("-a").args([first.path("state"), second.path("state")]).status().unwrap().success()
    });
    assert_eq!(second.json(&["ps"])["sandboxes"], serde_json::json!([]));
    assert!(second.daemon_log().contains("belongs to another daemon"), "{}", second.daemon_log());
    second.start("one", &COUNTER);
    first.goes_on("one");
    second.goes_on("one");
}

#[test]
fn many_first_commands_at_once_start_one_daemon() {
    let rekindle = Rekindle::new();
    let children: Vec<_> = (0..8)
        .map(|_| rekindle.command(&["ps"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for child in children {
        let output = end_of(child);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_daemon_that_is_killed_leaves_programs_running_and_the_next_finds_them() {
    let rekindle = Rekindle::new();
    rekindle.start("goes on", &COUNTER);
    let go = rekindle.path("go");
    let waits = format!("while [ ! -e {} ]; do sleep 0.01; done; exit 4", go.display());
    rekindle.start("ends", &["sh", "-c", &waits]);
    let pid = rekindle.sandbox("goes on")["pid"].clone();
    let ends = rekindle.sandbox("ends")["pid"].as_i64().unwrap() as i32;
    rekindle.kill_daemon();
    std::fs::write(go, "").unwrap();
    wait("its end", || !is_alive(ends));
    rekindle.goes_on("goes on");
    // Its init may not have looked for ends before this daemon came.
    wait("its end to be told", || rekindle.sandbox("ends")["pid"] == 0);
    assert_eq!(rekindle.sandbox("goes on")["pid"], pid);
    let ended = rekindle.sandbox("ends");
    assert_eq!((&ended["state"], &ended["exit_code"]), (&"exited".into(), &4.into()));
    rekindle.ok(&["kill", "goes on"]);
    assert_eq!(rekindle.sandbox("goes on")["exit_code"], 128 + 15);
    rekindle.assert_tidy();
}

#[test]
fn a_start_that_the_daemon_does_not_survive_is_cleaned_up() {
    let mut rekindle = Rekindle::new();
    for fault in ["run-created:kill", "run-started:kill"] {
        rekindle.set_fault(Some(fault));
        let error = rekindle.refused(&["run", "-d", "--name", "x", "--", "sleep", "60"]);
        assert!(error.contains("connection to the daemon was lost"), "{error}");
        rekindle.set_fault(None);
        if rekindle.sandbox("x")["state"] == "running" {
            rekindle.ok(&["kill", "x"]);
        }
        rekindle.assert_tidy();
    }
}

#[test]
fn the_command_line_documents_itself() {
    let rekindle = Rekindle::new();
    let directory = rekindle.path("man");
    rekindle.ok(&["man", directory.to_str().unwrap()]);
    let page = std::fs::read_to_string(directory.join("rekindle-checkpoint.1")).unwrap();
    assert!(page.contains("leave"), "{page}");
    assert!(rekindle.ok(&["completions", "bash"]).contains("rekindle"));
    let output = rekindle.output(&["checkpoint", "x"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn doctor_says_what_is_needed() {
    let rekindle = Rekindle::new();
    let output = rekindle.output(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.success(), report["ok"] == true);
    for finding in report["findings"].as_array().unwrap() {
        for field in ["need", "found", "required", "mend"] {
            assert!(!finding[field].as_str().unwrap().is_empty(), "{finding}");
        }
    }
    let tried = finding(&report, "checkpoint and restore");
    assert_eq!(tried["ok"], true, "{tried}");
    assert_eq!(std::fs::read_dir(rekindle.path("runs")).unwrap().count(), 0, "the trial leaves nothing");
}

fn finding<'a>(report: &'a serde_json::Value, need: &str) -> &'a serde_json::Value {
    report["findings"].as_array().unwrap().iter().find(|finding| finding["need"] == need).unwrap()
}

/// A `criu` in a directory of its own that answers as told.
fn criu_in_path(rekindle: &Rekindle, answers: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let directory = rekindle.path("bin");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("criu"), format!("#!/bin/sh\n{answers}\n")).unwrap();
    std::fs::set_permissions(directory.join("criu"), std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", directory.display(), std::env::var("PATH").unwrap())
}

#[test]
fn the_newest_criu_is_used_and_doctor_tries_it() {
    let rekindle = Rekindle::new();
    let report = |path: &str| -> serde_json::Value {
        let output = rekindle.command(&["doctor", "--json"]).env("PATH", path).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let old = report(&criu_in_path(&rekindle, "echo Version: 4.1"));
    assert!(!finding(&old, "CRIU")["found"].as_str().unwrap().contains("/bin/criu"), "{old}");
    // One that says of itself that it is new, and that `criu check` is content, and cannot do anything.
    let new = report(&criu_in_path(&rekindle, "[ $1 != --version ] || echo Version: 99.1"));
    assert!(finding(&new, "CRIU")["found"].as_str().unwrap().starts_with("99.1"), "{new}");
    assert_eq!(finding(&new, "what CRIU asks of the kernel")["ok"], true);
    let tried = finding(&new, "checkpoint and restore");
    assert!(tried["ok"] == false && tried["mend"].as_str().unwrap().contains("scripts/criu"), "{tried}");
    assert_eq!(new["ok"], false);
}

/// The line in which the daemon says that it holds no performance event, unless it holds one.
fn without_event(rekindle: &Rekindle) -> Option<String> {
    let descriptors = format!("/proc/{}/fd", rekindle.daemon_pid().unwrap());
    let targets = std::fs::read_dir(descriptors).unwrap();
    let held = targets
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .any(|target| target.as_os_str() == "anon_inode:[perf_event]");
    let log = rekindle.daemon_log();
    let told = log.lines().find(|line| line.contains("no performance event is held")).map(str::to_string);
    assert_ne!(held, told.is_some(), "{log}");
    told
}

#[test]
fn the_daemon_has_breakpoints_at_hand_for_criu() {
    let rekindle = Rekindle::with(&[("REKINDLE_LOG", "debug")]);
    rekindle.ok(&["ps"]);
    let Some(told) = without_event(&rekindle) else { return };
    // A machine or a filter that forbids it; anything else would be a question that the kernel does not understand.
    let forbidden = [libc::EPERM, libc::EACCES, libc::ENOSYS].map(|code| format!("(os error {code})"));
    assert!(forbidden.iter().any(|code| told.contains(code)), "{told}");
    eprintln!("skipped: this machine forbids performance events: {told}");
}

#[test]
fn where_performance_events_are_forbidden_the_daemon_serves_without() {
    let rekindle = Rekindle::with(&[("REKINDLE_LOG", "debug")]);
    let mut command = rekindle.command(&["ps"]);
    crate::harness::refuse(&mut command, libc::SYS_perf_event_open);
    assert!(command.output().unwrap().status.success());
    assert!(without_event(&rekindle).is_some());
    rekindle.start("counter", &COUNTER);
    rekindle.goes_on("counter");
}
