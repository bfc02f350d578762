//! Every step failed, hung or killed: afterwards the program runs, nothing is locked, and the next checkpoint works.

use std::process::Stdio;

use crate::driver::standin::Fixture;
use crate::driver::support::tracer;
use crate::harness::{end_of, kill, wait};

const ACTIONS: [&str; 5] = ["fail", "lie", "hang", "kill", "kill-after"];

#[test]
fn a_lock_that_goes_wrong_is_undone() {
    step_goes_wrong("lock", false);
}

#[test]
fn a_checkpoint_that_goes_wrong_is_undone() {
    step_goes_wrong("checkpoint", false);
}

#[test]
fn a_way_back_that_goes_wrong_is_mended() {
    step_goes_wrong("restore", true);
}

#[test]
fn an_unlock_that_goes_wrong_is_mended() {
    step_goes_wrong("unlock", true);
}

/// What goes wrong on the way back is mended, and the image is there.
fn step_goes_wrong(step: &str, mended: bool) {
    for action in ACTIONS {
        let scene = if action == "hang" { Fixture::limited() } else { Fixture::new() };
        let program = scene.start();
        scene.plan(&format!("{step} {action} 1"));
        let output = scene.checkpoint(&program, "image", "--leave-running");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), mended, "{step} {action}: {error}");
        assert_eq!(scene.rekindle.images().len(), usize::from(mended), "{step} {action}");
        scene.go_on(2);
        scene.assert_tidy();
        let again = scene.checkpoint(&program, "again", "--stop");
        assert!(again.status.success(), "{step} {action}: {}", String::from_utf8_lossy(&again.stderr));
    }
}

#[test]
fn a_restore_that_goes_wrong_gives_everything_back() {
    let scene = Fixture::limited();
    let program = scene.start();
    assert!(scene.checkpoint(&program, "image", "--stop").status.success());
    for (step, action) in ["restore", "unlock"].iter().flat_map(|step| ACTIONS.map(|action| (step, action))) {
        scene.plan(&format!("{step} {action} 1"));
        let error = scene.rekindle.refused(&["restore", "image", "-d", "--name", "x"]);
        assert!(error.contains("driver"), "{step} {action}: {error}");
        scene.assert_tidy();
    }
    scene.rekindle.ok(&["restore", "image", "-d"]);
    scene.grow(2);
}

#[test]
fn a_killed_daemon_s_helper_brings_the_program_back() {
    for point in ["checkpoint-begun", "detached", "frozen", "before-commit"] {
        let mut scene = Fixture::new();
        let program = scene.start();
        scene.rekindle.set_fault(Some(&format!("{point}:kill")));
        scene.kills_daemon(&["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop"]);
        // Nobody starts another daemon before this has been seen.
        scene.go_on(2);
        scene.wait_helper_end();
        scene.rekindle.set_fault(None);
        assert!(scene.rekindle.images().is_empty(), "{point}");
        scene.assert_tidy();
        assert!(scene.checkpoint(&program, "image", "--stop").status.success());
    }
}

#[test]
fn a_program_that_is_killed_meanwhile_is_told_and_leaves_nothing() {
    for point in ["quiesced", "detached", "pages-begun", "frozen"] {
        let mut scene = Fixture::new();
        let program = scene.start();
        scene.rekindle.set_fault(Some(&format!("{point}:hang")));
        let pid = program.pid();
        let mut command = scene.rekindle.command(&["checkpoint", "--pid", &pid, "--to", "image", "--stop"]);
        let asked = command.stderr(Stdio::piped()).spawn().unwrap();
        scene.rekindle.reached(point);
        if point == "pages-begun" {
            wait("CRIU", || tracer(&pid) != 0);
        }
        kill(pid.parse().unwrap(), 9);
        scene.rekindle.let_go(point);
        let output = end_of(asked);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{point}");
        assert!(error.contains("ended while it was to be checkpointed"), "{point}: {error}");
        assert!(scene.rekindle.images().is_empty());
        scene.assert_tidy();
    }
}

/// One that was killed before CRIU came would be in the image with a GPU half and without memory.
#[test]
fn a_process_of_several_that_is_killed_meanwhile_is_named_and_the_other_goes_on() {
    for point in ["driver-locked", "driver-checkpointed", "detached", "pages-begun", "frozen"] {
        let mut scene = Fixture::new();
        let program = scene.start();
        scene.rekindle.set_fault(Some(&format!("{point}:hang")));
        let (pid, child) = (program.pid(), program.child());
        let words = ["checkpoint", "--pid", &pid, "--to", "image", "--leave-running"];
        let asked = scene.rekindle.command(&words).stderr(Stdio::piped()).spawn().unwrap();
        scene.rekindle.reached(point);
        if point == "pages-begun" {
            wait("CRIU", || tracer(&pid) != 0);
        }
        kill(child, 9);
        scene.rekindle.let_go(point);
        let output = end_of(asked);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{point}");
        let told = error.contains(&format!("process {child}")) && error.contains(" ended while ");
        assert!(told && error.lines().count() == 1, "{point}: {error}");
        assert!(scene.rekindle.images().is_empty(), "{point}");
        scene.go_on(1);
        scene.assert_tidy();
        // It is never waited for, and in the image as what it is.
        scene.rekindle.set_fault(None);
        assert!(scene.checkpoint(&program, "image", "--stop").status.success(), "{point}");
        scene.rekindle.ok(&["restore", "image", "-d"]);
        scene.go_on(1);
    }
}

#[test]
fn a_killed_criu_leaves_nothing_locked() {
    let mut scene = Fixture::new();
    let program = scene.start();
    scene.rekindle.set_fault(Some("frozen:hang"));
    let pid = program.pid();
    let mut command =
        scene.rekindle.command(&["checkpoint", "--pid", &pid, "--to", "image", "--leave-running"]);
    let mut asked = command.spawn().unwrap();
    scene.rekindle.reached("frozen");
    kill(tracer(&pid), 9);
    scene.rekindle.kill_daemon();
    asked.wait().unwrap();
    scene.go_on(2);
    scene.rekindle.set_fault(None);
    assert!(scene.rekindle.images().is_empty());
    scene.assert_tidy();
    assert!(scene.checkpoint(&program, "image", "--stop").status.success());
}

/// It waits while the driver does its part, which waits for a kernel.
#[test]
fn a_criu_that_is_killed_while_it_waits_is_replaced_and_later_is_told() {
    for is_replaced in [true, false] {
        let mut scene = Fixture::new();
        scene.rekindle.set_fault((!is_replaced).then_some("pages-begun:hang"));
        let program = scene.start_with(1);
        scene.write("kernel", "");
        wait("the kernel", || scene.has("kernel-runs"));
        let pid = program.pid();
        let mut command = scene.rekindle.command(&["checkpoint", "--pid", &pid, "--to", "image", "--stop"]);
        let asked = command.stderr(Stdio::piped()).spawn().unwrap();
        wait("CRIU", || scene.criu().is_some());
        let criu = scene.criu().unwrap();
        if is_replaced {
            kill(criu, 9);
            scene.end_kernel();
        } else {
            // It stands when its turn comes, and ends then.
            kill(criu, 19);
            scene.end_kernel();
            scene.rekindle.reached("pages-begun");
            // It may not have been told to begin even so, and is replaced then.
            std::thread::sleep(std::time::Duration::from_millis(500));
            scene.rekindle.let_go("pages-begun");
            kill(criu, 9);
        }
        let output = end_of(asked);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || !is_replaced, "{error}");
        assert_eq!(scene.rekindle.images().len(), usize::from(output.status.success()));
        if !output.status.success() {
            assert!(error.contains("CRIU"), "{error}");
            scene.go_on(1);
            scene.assert_tidy();
            assert!(scene.checkpoint(&program, "image", "--stop").status.success());
        }
        scene.rekindle.ok(&["restore", "image", "-d"]);
        scene.go_on(1);
    }
}

#[test]
fn a_daemon_killed_during_a_restore_leaves_nothing() {
    for point in ["restore-complete", "restore-running"] {
        let mut scene = Fixture::new();
        let program = scene.start();
        assert!(scene.checkpoint(&program, "image", "--stop").status.success());
        scene.rekindle.set_fault(Some(&format!("{point}:kill")));
        scene.rekindle.refused(&["restore", "image", "-d", "--name", "x"]);
        scene.rekindle.set_fault(None);
        scene.rekindle.json(&["ps"]);
        scene.assert_tidy();
        scene.rekindle.ok(&["restore", "image", "-d", "--name", "y"]);
        scene.grow(2);
    }
}
