//! A program that was started without a sandbox, and a CRIU that waits for it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{able, criu, images};
use rekindle_sandbox::{Cpu, DumpSpec, Error, Frozen, Prepared, Tree};

fn nothing(_: &Frozen<'_>) -> Result<(), Error> {
    Ok(())
}

/// A program in a session of its own.
fn sleeper() -> Child {
    let mut command = Command::new("setsid");
    command.args(["sleep", "60"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    let began = Instant::now();
    while fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap() != "sleep\n" {
        assert!(began.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn a_criu_that_waits_is_used_for_what_it_was_asked_alone() {
    if !able() {
        return;
    }
    let mut child = sleeper();
    let tree = Tree::find(child.id() as i32).unwrap();
    let cpu = Cpu::Tree(&tree);
    let (_keep, dir) = images();
    let (stay, end) = (DumpSpec::new(criu(), &dir, true), DumpSpec::new(criu(), &dir, false));
    drop(cpu.prepare(&stay));
    assert!(tree.is_alive() && !dir.join("inventory.img").exists(), "nothing was touched");
    let prepared = cpu.prepare(&stay);
    cpu.dump(&stay, prepared, nothing).unwrap();
    assert!(tree.is_alive() && dir.join("inventory.img").exists());
    // One that was asked to let the program go on must not be what ends it, and the other way round.
    let prepared = cpu.prepare(&end);
    cpu.dump(&stay, prepared, nothing).unwrap();
    assert!(tree.is_alive());
    let prepared = cpu.prepare(&stay);
    cpu.dump(&end, prepared, nothing).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_program_whose_image_is_not_safe_goes_on() {
    if !able() {
        return;
    }
    let mut child = sleeper();
    let tree = Tree::find(child.id() as i32).unwrap();
    let (_keep, dir) = images();
    let spec = DumpSpec::new(criu(), &dir, false);
    let unsafe_yet = |_: &Frozen<'_>| Err("not safe yet");
    assert!(Cpu::Tree(&tree).dump(&spec, Prepared::default(), unsafe_yet).is_err());
    assert!(tree.is_alive());
    child.kill().unwrap();
    child.wait().unwrap();
}
