//! Standard input: of a program in the foreground, over checkpoints and restores, and of one in the background.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};

use crate::harness::{Rekindle, end_of, wait};

/// A command in the foreground whose standard input is ours to write to.
fn foreground(rekindle: &Rekindle, arguments: &[&str]) -> Child {
    rekindle.command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn write(child: &mut Child, text: &[u8]) {
    child.stdin.as_mut().unwrap().write_all(text).unwrap();
}

fn said(child: Child) -> String {
    let output = end_of(child);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_foreground_passes_its_input_on_to_the_end() {
    let rekindle = Rekindle::new();
    let mut child =
        foreground(&rekindle, &["run", "--", "sh", "-c", "read first; echo \"got $first\"; wc -c"]);
    write(&mut child, b"line\n");
    // More than a pipe holds.
    write(&mut child, &[b'x'; 300_000]);
    drop(child.stdin.take());
    assert_eq!(said(child), "got line\n300000\n");

    // One that reads nothing ends when it likes.
    let go = rekindle.path("go");
    let reads_nothing = format!("while [ ! -e {} ]; do sleep 0.01; done; echo done", go.display());
    let mut child = foreground(&rekindle, &["run", "--", "sh", "-c", &reads_nothing]);
    write(&mut child, b"for nobody\n");
    std::fs::write(go, "").unwrap();
    let stdin = child.stdin.take();
    assert_eq!(said(child), "done\n");
    drop(stdin);

    let file = rekindle.path("file");
    std::fs::write(&file, "of a file\n").unwrap();
    let from = std::fs::File::open(&file).unwrap();
    let output = rekindle.command(&["run", "--", "cat"]).stdin(from).output().unwrap();
    assert_eq!(output.stdout, b"of a file\n");
    assert_eq!(rekindle.output(&["run", "--", "cat"]).stdout, b"", "/dev/null");
    assert_eq!(rekindle.ok(&["run", "-d", "--name", "d", "--", "cat"]), "d\n");
    wait("its end", || rekindle.sandbox("d")["pid"] == 0);
}

/// Says each line that it reads; reads on only when there is a file.
const READER: &str = "import os, sys, time
for line in iter(sys.stdin.buffer.raw.readline, b''):
    print('got', line.decode().strip(), flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
print('end', flush=True)";

#[test]
fn what_is_in_the_pipe_comes_along_and_a_restore_goes_on_with_its_own() {
    let rekindle = Rekindle::new();
    let go = rekindle.path("go").display().to_string();
    let mut child = foreground(&rekindle, &["run", "--name", "reader", "--", "python3", "-c", READER, &go]);
    write(&mut child, b"one\n");
    wait("the first line", || rekindle.output(&["logs", "reader"]).stdout == b"got one\n");
    write(&mut child, b"two\nthree\n");
    let pipe = || {
        let pid = rekindle.sandbox("reader")["pid"].to_string();
        let pipe = std::fs::File::open(format!("/proc/{pid}/fd/0")).unwrap();
        let mut bytes: libc::c_int = 0;
        // SAFETY: writes one integer.
        let done = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut bytes) };
        assert_eq!(done, 0);
        bytes
    };
    wait("the rest to be in the pipe", || pipe() == 10);
    rekindle.ok(&["checkpoint", "reader", "--to", "image", "--leave-running"]);
    rekindle.ok(&["checkpoint", "reader", "--to", "stopped", "--stop"]);
    assert!(child.wait().unwrap().success());
    std::fs::write(&go, "").unwrap();

    let mut child = foreground(&rekindle, &["restore", "image", "--name", "a"]);
    write(&mut child, b"four\n");
    drop(child.stdin.take());
    assert_eq!(said(child), "got two\ngot three\ngot four\nend\n");
    for (image, name) in [("image", "b"), ("stopped", "c")] {
        rekindle.ok(&["restore", image, "--name", name, "-d"]);
        wait("its end", || rekindle.sandbox(name)["pid"] == 0);
        assert_eq!(rekindle.lines(name), ["got two", "got three", "end"]);
    }
}

#[test]
fn what_is_restored_can_be_taken_again() {
    let rekindle = Rekindle::new();
    let go = rekindle.path("go").display().to_string();
    let mut child = foreground(&rekindle, &["run", "--name", "reader", "--", "python3", "-c", READER, &go]);
    write(&mut child, b"one\n");
    wait("the first line", || rekindle.output(&["logs", "reader"]).stdout == b"got one\n");
    rekindle.ok(&["checkpoint", "reader", "--to", "first", "--stop"]);
    assert!(child.wait().unwrap().success());
    std::fs::write(&go, "").unwrap();
    let mut child = foreground(&rekindle, &["restore", "first", "--name", "second"]);
    write(&mut child, b"two\n");
    wait("the second line", || rekindle.output(&["logs", "second"]).stdout == b"got two\n");
    rekindle.ok(&["checkpoint", "second", "--to", "second", "--stop"]);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let mut child = foreground(&rekindle, &["restore", "second", "--name", "third"]);
    write(&mut child, b"three\n");
    drop(child.stdin.take());
    assert_eq!(said(child), "got three\nend\n");
}
