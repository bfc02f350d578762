//! What a daemon and its helper leave when both die: the next daemon brings the processes back to running.

use std::fs;

use crate::driver::standin::Fixture;
use crate::driver::support::Program;
use crate::harness::{end_of, kill, wait};

/// Kills daemon and helper when a checkpoint has come to this point. Its journal is what is left.
fn strand(scene: &mut Fixture, program: &Program, fault: &str, point: &str, after: &str) {
    scene.rekindle.set_fault(Some(fault));
    let pid = program.pid();
    let mut command = scene.rekindle.command(&["checkpoint", "--pid", &pid, "--to", "image", after]);
    let mut asked = command.spawn().unwrap();
    scene.rekindle.reached(point);
    // Both at once, so that neither can do what is the other's.
    let (helper, daemon) = (scene.helper().unwrap(), scene.rekindle.daemon_pid().unwrap());
    kill(helper, 19);
    kill(daemon, 9);
    kill(helper, 9);
    asked.wait().unwrap();
    assert!(scene.rekindle.path("state/driver").join(format!("pid-{pid}.json")).exists(), "{fault}");
}

#[test]
fn after_daemon_and_helper_were_killed_the_next_daemon_brings_the_program_back() {
    for (daemon, helper) in [
        ("detached:hang", ""),
        ("frozen:hang", ""),
        ("before-commit:hang", ""),
        ("", "driver-locked:hang"),
        ("", "driver-checkpointed:hang"),
        ("", "driver-restoring:hang"),
        ("", "driver-unlocking:hang"),
    ] {
        let mut scene = Fixture::new();
        let program = scene.start();
        // What is to be stopped is held until the image is there.
        let (point, after) = match helper.split_once(':') {
            Some((point, _)) => (point, "--leave-running"),
            None => (daemon.trim_end_matches(":hang"), "--stop"),
        };
        strand(&mut scene, &program, &[daemon, helper].join(","), point, after);
        scene.rekindle.set_fault(None);
        scene.rekindle.json(&["ps"]);
        scene.go_on(2);
        scene.assert_tidy();
        assert!(scene.rekindle.images().is_empty());
        assert!(scene.checkpoint(&program, "image", "--stop").status.success(), "{daemon}{helper}");
    }
}

#[test]
fn what_cannot_be_brought_back_at_once_is_tried_again() {
    let mut scene = Fixture::new();
    let program = scene.start_with(1);
    strand(&mut scene, &program, "driver-checkpointed:hang", "driver-checkpointed", "--leave-running");
    // More often than a helper is replaced at once.
    scene.plan("restore kill 4");
    scene.rekindle.set_fault(None);
    scene.rekindle.json(&["ps"]);
    scene.go_on(1);
    scene.assert_tidy();
    let log = scene.rekindle.daemon_log();
    assert!(log.contains("ERROR"), "{log}");
    assert!(scene.checkpoint(&program, "image", "--stop").status.success());
}

#[test]
fn a_checkpoint_waits_until_what_an_earlier_daemon_left_runs_again() {
    let mut scene = Fixture::new();
    let program = scene.start();
    strand(&mut scene, &program, "driver-checkpointed:hang", "driver-checkpointed", "--leave-running");
    scene.rekindle.set_fault(Some("driver-recovering:hang"));
    scene.rekindle.json(&["ps"]);
    scene.rekindle.reached("driver-recovering");
    let mut command =
        scene.rekindle.command(&["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop"]);
    let mut asked = command.spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(asked.try_wait().unwrap().is_none(), "it did not wait");
    scene.rekindle.let_go("driver-recovering");
    assert!(end_of(asked).status.success());
    scene.assert_tidy();
    scene.rekindle.ok(&["restore", "image", "-d"]);
    scene.grow(2);
}

/// As a helper leaves it that was started after the next daemon had looked, and died.
#[test]
fn a_journal_that_nobody_works_on_is_finished() {
    let mut scene = Fixture::new();
    let program = scene.start_with(1);
    strand(&mut scene, &program, "driver-locked:hang", "driver-locked", "--leave-running");
    let name = format!("state/driver/pid-{}.json", program.pid());
    let journal = fs::read(scene.rekindle.path(&name)).unwrap();
    scene.rekindle.set_fault(None);
    scene.rekindle.json(&["ps"]);
    scene.go_on(1);
    scene.assert_tidy();
    scene.call("cuCheckpointProcessLock", &program.pid());
    fs::write(scene.rekindle.path(&name), journal).unwrap();
    scene.assert_tidy();
    scene.go_on(1);
    wait("the helper to be done", || scene.checkpoint(&program, "image", "--stop").status.success());
}
