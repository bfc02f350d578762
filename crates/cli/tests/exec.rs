//! Commands beside a sandbox's program, and copies of files into it and out of it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use crate::harness::{COUNTER, Rekindle, end_of, kill, wait};

/// Leaves a file where nobody outside sees it, and counts.
const MARKS: [&str; 3] = [
    "python3",
    "-c",
    "import time\nopen('/dev/shm/mark', 'w').write('inside')\nn = 0\nwhile True:\n    print(n, flush=True)\n    n += 1\n    time.sleep(0.02)",
];

fn marking() -> Rekindle {
    let rekindle = Rekindle::new();
    rekindle.start("counter", &MARKS);
    rekindle.goes_on("counter");
    rekindle
}

/// A shell in the sandbox that has said that it is there.
fn shell(rekindle: &Rekindle, script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = rekindle.command(&["exec", "counter", "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "here\n");
    (child, output)
}

/// `sleep` for a time that no other run of these tests asks for.
fn long_sleep(which: u32) -> String {
    format!("sleep {which}{:07}", std::process::id())
}

/// Whether a process runs with these words in its command.
fn runs(words: &str) -> bool {
    let command = |pid: String| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    let mut all = all.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).map(command);
    all.any(|command| String::from_utf8_lossy(&command).replace('\0', " ").contains(words))
}

#[test]
fn a_command_sees_what_the_program_sees_and_ends_with_its_own_code() {
    let rekindle = marking();
    assert_eq!(rekindle.ok(&["exec", "counter", "--", "cat", "/dev/shm/mark"]), "inside");
    let code = |script: &str| rekindle.output(&["exec", "counter", "--", "sh", "-c", script]).status.code();
    assert_eq!((code("exit 9"), code("kill -9 $$"), code("exit 0")), (Some(9), Some(137), Some(0)));
    let missing = rekindle.output(&["exec", "counter", "--", "no-such-program"]);
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(missing.status.code() == Some(127) && said.contains("no-such-program"), "{said}");
    let apart = rekindle.output(&["exec", "counter", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!((&*apart.stdout, &*apart.stderr), (&b"out\n"[..], &b"err\n"[..]));
    let script = "echo $WORD; pwd; test -n \"$PATH\" && echo path";
    let asked = ["exec", "-e", "WORD=a b", "-w", "/proc", "counter", "--", "sh", "-c", script];
    assert_eq!(rekindle.ok(&asked), "a b\n/proc\npath\n");
    let mut cat = rekindle.command(&["exec", "counter", "--", "cat"]);
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cat.stdin.take().unwrap().write_all(b"through\n").unwrap();
    assert_eq!(end_of(cat).stdout, b"through\n");
    let told = rekindle.output(&["--json", "exec", "counter", "--", "sh", "-c", "echo said; exit 3"]);
    let document: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((&document["exit_code"], told.status.code()), (&serde_json::json!(3), Some(3)));
    assert_eq!(told.stderr, b"said\n");
    rekindle.ok(&["kill", "--signal", "9", "counter"]);
    wait("its end", || rekindle.sandbox("counter")["pid"] == 0);
    assert!(rekindle.refused(&["exec", "counter", "--", "true"]).contains("not running"));
}

#[test]
fn a_checkpoint_takes_the_program_and_not_the_command_beside_it() {
    let rekindle = marking();
    // What a command leaves behind is ended with it, and is nobody's stray.
    let sleep = long_sleep(1);
    let script = format!("setsid {sleep} & setsid {sleep} &");
    rekindle.ok(&["exec", "counter", "--", "sh", "-c", &script]);
    assert!(!runs(&sleep));
    rekindle.ok(&["checkpoint", "counter", "--to", "after", "--leave-running"]);

    let (mut beside, mut output) = shell(&rekindle, "echo here; read word; echo $word");
    rekindle.ok(&["checkpoint", "counter", "--to", "during", "--leave-running"]);
    rekindle.goes_on("counter");
    beside.stdin.take().unwrap().write_all(b"still\n").unwrap();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!((&*line, end_of(beside).status.code()), ("still\n", Some(0)));

    let (beside, _output) = shell(&rekindle, "echo here; sleep 600");
    rekindle.ok(&["checkpoint", "counter", "--to", "last", "--stop"]);
    assert_eq!(end_of(beside).status.code(), Some(137), "it ends with the sandbox");
    for image in ["during", "last"] {
        rekindle.ok(&["restore", image, "-d"]);
        rekindle.goes_on("counter");
        // The restored program is entered as the first one was.
        assert_eq!(rekindle.ok(&["exec", "counter", "--", "cat", "/dev/shm/mark"]), "inside");
        rekindle.ok(&["kill", "--signal", "9", "counter"]);
        wait("its end", || rekindle.sandbox("counter")["pid"] == 0);
    }
    rekindle.assert_tidy();
}

#[test]
fn a_signal_is_passed_on_and_a_command_that_is_killed_leaves_nothing() {
    let rekindle = marking();
    let script = "trap 'exit 5' TERM; echo here; while :; do sleep 0.02; done";
    let (beside, _output) = shell(&rekindle, script);
    kill(beside.id() as i32, 15);
    assert_eq!(end_of(beside).status.code(), Some(5));
    let sleep = long_sleep(2);
    let script = format!("setsid {sleep} & echo here; {sleep}");
    for who in ["command", "daemon"] {
        let (mut beside, _output) = shell(&rekindle, &script);
        wait("it to run", || runs(&sleep));
        match who {
            "command" => beside.kill().unwrap(),
            _ => rekindle.kill_daemon(),
        }
        wait("the end of what it ran", || !runs(&sleep));
        assert!(!end_of(beside).status.success());
        rekindle.goes_on("counter");
    }
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--leave-running"]);
}

#[test]
fn files_are_copied_in_and_out_under_a_name_or_into_a_directory() {
    let rekindle = Rekindle::new();
    rekindle.start("counter", &COUNTER);
    rekindle.goes_on("counter");
    let tree = rekindle.path("tree");
    fs::create_dir_all(tree.join("inner")).unwrap();
    // More than a pipe holds.
    let bytes: Vec<u8> = (0..3_000_000u32).flat_map(|number| number.to_le_bytes()).collect();
    fs::write(tree.join("inner/large"), &bytes).unwrap();
    std::os::unix::fs::symlink("inner/large", tree.join("link")).unwrap();
    let (tree, back) = (tree.to_str().unwrap(), rekindle.path("back"));
    let back = back.to_str().unwrap();
    rekindle.ok(&["cp", tree, "counter:/dev/shm/named"]);
    rekindle.ok(&["cp", tree, "counter:/dev/shm"]);
    let listed =
        rekindle.ok(&["exec", "counter", "--", "sh", "-c", "cd /dev/shm; cat named/link | wc -c; ls"]);
    assert_eq!(listed, "12000000\nnamed\ntree\n");
    rekindle.ok(&["cp", "counter:/dev/shm/named", back]);
    assert_eq!(fs::read(format!("{back}/inner/large")).unwrap(), bytes);
    assert_eq!(fs::read_link(format!("{back}/link")).unwrap().to_str(), Some("inner/large"));
    rekindle.ok(&["cp", "counter:/dev/shm/tree/inner/large", back]);
    assert_eq!(fs::read(format!("{back}/large")).unwrap(), bytes);

    let missing = rekindle.refused(&["cp", "counter:/dev/shm/missing", back]);
    assert!(missing.contains("/dev/shm/missing") && missing.contains("No such file"), "{missing}");
    let nowhere = rekindle.refused(&["cp", tree, "counter:/dev/shm/no/place"]);
    assert!(nowhere.contains("/dev/shm/no/place"), "{nowhere}");
    assert!(rekindle.refused(&["cp", "/no/such/file", "counter:/dev/shm"]).contains("/no/such/file"));
    assert!(
        rekindle.refused(&["cp", "counter:/dev/shm/tree", "/no/such/place/x"]).contains("/no/such/place")
    );
    assert!(rekindle.refused(&["cp", "a", "b"]).contains("SANDBOX:PATH"));
    assert!(rekindle.refused(&["cp", "nobody:/x", back]).contains("\"nobody\""));
    rekindle.goes_on("counter");
}
