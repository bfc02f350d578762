//! Programs with a GPU: their workers, and what may happen to them.

use crate::harness::{GPU_COUNTER, Rekindle, kill, wait};

#[test]
fn a_program_counts_and_ends() {
    let rekindle = Rekindle::new();
    let mut arguments = vec!["run", "--gpu", "emulated", "--"];
    arguments.extend(GPU_COUNTER);
    arguments.push("5");
    assert_eq!(rekindle.ok(&arguments), "1\n2\n3\n4\n5\n");
    wait("its worker", || rekindle.worker_processes().into_iter().all(|worker| rekindle.is_done(worker)));
    rekindle.assert_tidy();
}

#[test]
fn a_dead_worker_is_an_error_in_its_program_alone() {
    let rekindle = Rekindle::new();
    rekindle.start("victim", &GPU_COUNTER);
    rekindle.goes_on("victim");
    let worker = rekindle.workers();
    assert_eq!(worker.len(), 1);
    rekindle.start("other", &GPU_COUNTER);
    rekindle.goes_on("other");
    kill(worker[0], 9);
    wait("the program's end", || rekindle.sandbox("victim")["pid"] == 0);
    let lines = rekindle.lines("victim");
    assert!(lines.iter().any(|line| line.contains("failed: 46")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("rekindle: ") && line.contains("worker")), "{lines:?}");
    rekindle.goes_on("other");
}

#[test]
fn a_worker_that_dies_under_a_program_that_does_not_look_is_told_of() {
    let rekindle = Rekindle::new();
    let code = "import ctypes, time\nctypes.CDLL('libcuda.so.1').cuInit(0)\nprint('ready', flush=True)\ntime.sleep(60)";
    rekindle.start("idle", &["python3", "-c", code]);
    wait("the program", || rekindle.lines("idle") == ["ready"]);
    kill(rekindle.workers()[0], 9);
    wait("the problem", || !rekindle.sandbox("idle")["problem"].is_null());
    assert!(rekindle.sandbox("idle")["problem"].as_str().unwrap().contains("signal 9"));
    let error = rekindle.refused(&["checkpoint", "idle", "--to", "image", "--stop"]);
    assert!(error.contains("worker") && error.contains("gone"), "{error}");
    assert_eq!(rekindle.sandbox("idle")["state"], "running");
}

#[test]
fn a_killed_program_leaves_no_worker() {
    let rekindle = Rekindle::new();
    rekindle.start("victim", &GPU_COUNTER);
    rekindle.goes_on("victim");
    let worker = rekindle.workers()[0];
    kill(rekindle.sandbox("victim")["pid"].as_i64().unwrap() as i32, 9);
    wait("the end of all", || rekindle.is_done(worker) && rekindle.sandbox("victim")["pid"] == 0);
    assert_eq!(rekindle.sandbox("victim")["exit_code"], 128 + 9);
    rekindle.assert_tidy();
}

#[test]
fn gpu_memory_is_shown() {
    let rekindle = Rekindle::new();
    rekindle.start("counter", &GPU_COUNTER);
    rekindle.goes_on("counter");
    // A worker that does not answer at once is not waited for.
    wait("what it has", || {
        let sandbox = rekindle.sandbox("counter");
        ["device_bytes", "pinned_bytes"].iter().all(|kind| sandbox[*kind].as_u64() >= Some(256))
    });
}

#[test]
fn processes_one_after_the_other_and_side_by_side() {
    let rekindle = Rekindle::new();
    let program = GPU_COUNTER[1];
    let script =
        format!("python3 {program} 3; python3 {program} 3; python3 {program} & exec python3 {program}");
    rekindle.start("many", &["sh", "-c", &script]);
    // Each says so when it uses the GPU.
    let begun = || rekindle.lines("many").iter().filter(|line| *line == "1").count();
    wait("all of them", || begun() == 4);
    assert_eq!(rekindle.lines("many")[..6], ["1", "2", "3", "1", "2", "3"]);
    rekindle.ok(&["sleep", "many"]);
    let before = rekindle.lines("many").len();
    wait("the program to go on", || rekindle.lines("many").len() > before + 4);
    rekindle.ok(&["checkpoint", "many", "--to", "image", "--stop"]);
    rekindle.ok(&["restore", "image", "-d", "--name", "again"]);
    assert_eq!(rekindle.sandbox("again")["workers"].as_array().unwrap().len(), 2);
    let before = rekindle.lines("again").len();
    wait("both to go on", || rekindle.lines("again").len() > before + 4);
}

#[test]
fn a_worker_that_dies_after_a_restore_is_replaced_or_told_of() {
    let rekindle = Rekindle::new();
    rekindle.start("counter", &GPU_COUNTER);
    rekindle.goes_on("counter");
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
    for round in 0..4 {
        let name = format!("again-{round}");
        rekindle.ok(&["restore", "image", "-d", "--name", &name]);
        let dead = rekindle.workers()[0];
        kill(dead, 9);
        let before = rekindle.lines(&name).len();
        let ended = || rekindle.sandbox(&name)["pid"] == 0;
        // One that still loads is replaced; if all was loaded, what it had since cannot be had again.
        let replaced = || rekindle.workers().iter().any(|worker| *worker != dead);
        let goes_on = || replaced() && rekindle.lines(&name).len() > before + 3;
        wait("the program's end, or another worker's work", || ended() || goes_on());
        if ended() {
            let said = rekindle.lines(&name).iter().any(|line| line.contains("worker"));
            assert!(said || !rekindle.sandbox(&name)["problem"].is_null());
        } else {
            rekindle.goes_on(&name);
            rekindle.ok(&["kill", "--signal", "9", &name]);
            wait("its end", ended);
        }
    }
    rekindle.assert_tidy();
}

#[test]
fn another_gpu_is_refused_before_anything_is_touched() {
    let rekindle = Rekindle::new();
    rekindle.start("counter", &GPU_COUNTER);
    rekindle.goes_on("counter");
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
    let error =
        rekindle.refused(&["restore", "image", "-d", "--name", "small", "--gpu", "emulated:memory=1M"]);
    assert!(error.contains("memory"), "{error}");
    assert!(rekindle.refused(&["restore", "image", "-d", "--gpu", "quantum"]).contains("\"quantum\""));
    assert_eq!(rekindle.json(&["ps", "-a"])["sandboxes"].as_array().unwrap().len(), 1);
    rekindle.assert_tidy();
}
