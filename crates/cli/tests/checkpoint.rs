//! Images of programs with and without a GPU: taken, restored, and every step failed or killed.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;

use crate::harness::{COUNTER, GPU_COUNTER, Rekindle, child, end_of, kill, wait};

/// Where a checkpoint can be made to fail, in its order.
const POINTS: [&str; 9] = [
    "checkpoint-begun",
    "quiesced",
    "detached",
    "frozen",
    "saved",
    "pinned-saved",
    "before-commit",
    "in-image",
    "committed",
];

/// The points at which the image is there.
const SEALED: [&str; 2] = ["in-image", "committed"];

fn counting(program: &[&str]) -> Rekindle {
    let rekindle = Rekindle::new();
    rekindle.start("counter", program);
    rekindle.goes_on("counter");
    rekindle
}

/// Each test for a program without a GPU and for one with.
macro_rules! for_both {
    ($($name:ident)*) => {
        mod cpu {
            $(#[test] fn $name() { super::$name(&super::COUNTER) })*
        }
        mod gpu {
            $(#[test] fn $name() { super::$name(&super::GPU_COUNTER) })*
        }
    };
}

for_both! {
    a_program_goes_on_beside_its_image_and_the_image_continues_it
    a_checkpoint_and_a_restore_leave_traces
    a_restored_program_is_checkpointed_and_restored_again
    a_checkpoint_that_fails_anywhere_is_undone
    a_daemon_killed_anywhere_in_a_checkpoint_leaves_the_program_running
    a_restore_that_fails_or_is_killed_anywhere_gives_everything_back
    a_checkpoint_is_cancelled_until_the_image_is_there
    an_image_is_taken_after_the_daemon_was_killed
    a_full_disk_undoes_the_checkpoint
}

#[test]
fn a_program_that_waits_for_its_child_to_leave_it_its_memory_is_waited_for_and_then_refused() {
    let rekindle = Rekindle::new();
    let program = rekindle.disk_sleep();
    rekindle.start("vfork", &[program.to_str().unwrap()]);
    let pid = rekindle.sandbox("vfork")["pid"].as_i64().unwrap() as i32;
    wait("its child", || child(pid).is_some());
    let error = rekindle.refused(&["checkpoint", "vfork", "--to", "image", "--stop"]);
    assert!(error.contains(&format!("thread {pid}")) && error.contains("vfork"), "{error}");
    let mut checkpoint = rekindle.command(&["checkpoint", "vfork", "--to", "image", "--leave-running"]);
    let checkpoint = checkpoint.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait("the checkpoint's beginning", || rekindle.sandbox("vfork")["state"] == "checkpointing");
    kill(child(pid).unwrap(), 9);
    let output = end_of(checkpoint);
    assert!(output.status.success(), "{output:?}");
    rekindle.ok(&["restore", "image", "-d", "--name", "again"]);
    for name in ["vfork", "again"] {
        wait("it to count", || rekindle.lines(name).len() > 3);
    }
}

fn a_program_goes_on_beside_its_image_and_the_image_continues_it(program: &[&str]) {
    let rekindle = counting(program);
    let report = rekindle.json(&["checkpoint", "counter", "--to", "one", "--leave-running"]);
    assert!(report["total_us"].as_u64() >= report["stopped_us"].as_u64());
    rekindle.goes_on("counter");
    rekindle.json(&["checkpoint", "counter", "--to", "two", "--stop"]);
    assert_eq!(rekindle.sandbox("counter")["state"], "stopped");
    let last = *rekindle
        .lines("counter")
        .iter()
        .map(|line| line.parse::<u64>().unwrap())
        .collect::<Vec<_>>()
        .last()
        .unwrap();

    let restored = rekindle.json(&["restore", "two", "-d"]);
    assert_eq!(restored["name"], "counter");
    rekindle.goes_on("counter");
    assert_eq!(rekindle.count("counter")[0], last + 1, "the log begins after the checkpoint");
    rekindle.ok(&["restore", "one", "-d", "--name", "a"]);
    rekindle.ok(&["restore", "one", "-d", "--name", "b"]);
    rekindle.goes_on("a");
    rekindle.goes_on("b");
    assert_eq!(rekindle.count("a")[0], rekindle.count("b")[0]);
    assert_eq!(rekindle.sandbox("a")["image"], "one");
    for image in ["one", "two"] {
        rekindle.ok(&["verify", image]);
        assert!(std::path::Path::new(rekindle.json(&["inspect", image])["path"].as_str().unwrap()).is_dir());
    }
    assert!(rekindle.json(&["rmi", "one", "two"])["freed_bytes"].as_u64() > Some(1_000_000));
    assert!(rekindle.images().is_empty());
    rekindle.goes_on("a");
}

/// Each has its phases, says what waited for what, and is drawn.
fn a_checkpoint_and_a_restore_leave_traces(program: &[&str]) {
    let rekindle = counting(program);
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--leave-running"]);
    let error = rekindle.refused(&["checkpoint", "counter", "--to", "image", "--leave-running"]);
    rekindle.ok(&["restore", "image", "-d", "--name", "back"]);
    let (svg, chrome) = (rekindle.path("t.svg"), rekindle.path("t.json"));
    let files = ["--svg", svg.to_str().unwrap(), "--chrome", chrome.to_str().unwrap()];
    let trace = |name: &str| rekindle.json(&[&["trace", name][..], &files].concat())["traces"].clone();

    let taken = trace("counter");
    assert_eq!(taken.as_array().unwrap().len(), 1, "one that did not begin is none: {error}");
    assert!(taken[0]["total_us"].as_u64() >= taken[0]["stopped_us"].as_u64());
    let restored = trace("back");
    for (trace, waits) in [(&taken[0], "gpu half"), (&restored[0], "gpu half")] {
        let phases = trace["phases"].as_array().unwrap();
        assert!(phases.iter().any(|phase| phase["lane"] == "cpu half" && phase["duration_us"] != 0));
        assert!(phases.windows(2).all(|pair| pair[0]["start_us"].as_u64() <= pair[1]["start_us"].as_u64()));
        let end = trace["total_us"].as_u64().unwrap();
        let within = |phase: &serde_json::Value| {
            phase["start_us"].as_u64().unwrap() + phase["duration_us"].as_u64().unwrap() <= end
        };
        // Buffers may load while the program runs, what it maps is read whole beside it, and CRIU ends beside it.
        let beside = |phase: &&serde_json::Value| {
            let name = phase["name"].as_str().unwrap();
            ["GPU memory", "check what is mapped"].contains(&name) || name.starts_with("criu ")
        };
        assert!(phases.iter().filter(|phase| !beside(phase)).all(within), "{trace}");
        if program == GPU_COUNTER {
            assert!(phases.iter().any(|phase| phase["waited_for"][0] == waits), "{trace}");
            assert!(phases.iter().any(|phase| phase["lane"] == waits), "{trace}");
        }
    }
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("criu to post-restore"));
    let events: serde_json::Value = serde_json::from_slice(&std::fs::read(&chrome).unwrap()).unwrap();
    assert!(events["traceEvents"].as_array().unwrap().len() > 5);
}

fn a_restored_program_is_checkpointed_and_restored_again(program: &[&str]) {
    let rekindle = counting(program);
    for round in 0..3 {
        let image = format!("image-{round}");
        rekindle.ok(&["checkpoint", "counter", "--to", &image, "--stop"]);
        rekindle.ok(&["restore", &image, "-d"]);
        rekindle.goes_on("counter");
    }
}

fn a_checkpoint_that_fails_anywhere_is_undone(program: &[&str]) {
    for (point, after) in POINTS.iter().flat_map(|point| [(*point, "--leave-running"), (*point, "--stop")]) {
        let mut rekindle = Rekindle::new();
        rekindle.set_fault(Some(point));
        rekindle.start("counter", program);
        rekindle.goes_on("counter");
        let error = rekindle.refused(&["checkpoint", "counter", "--to", "image", after]);
        assert!(error.contains("injected"), "{point}: {error}");
        if (point, after) == ("committed", "--stop") {
            wait("the program's end", || rekindle.sandbox("counter")["state"] == "stopped");
            assert_eq!(rekindle.images(), ["image"]);
        } else {
            rekindle.goes_on("counter");
            assert_eq!(rekindle.sandbox("counter")["state"], "running");
            let there = after == "--leave-running" && SEALED.contains(&point);
            assert_eq!(!rekindle.images().is_empty(), there, "{point} {after}");
        }
        rekindle.assert_tidy();
    }
}

fn a_daemon_killed_anywhere_in_a_checkpoint_leaves_the_program_running(program: &[&str]) {
    for point in POINTS {
        let mut rekindle = Rekindle::new();
        rekindle.set_fault(Some(&format!("{point}:kill")));
        rekindle.start("counter", program);
        rekindle.goes_on("counter");
        let error = rekindle.refused(&["checkpoint", "counter", "--to", "image", "--leave-running"]);
        assert!(error.contains("connection to the daemon was lost"), "{point}: {error}");
        rekindle.set_fault(None);
        rekindle.goes_on("counter");
        let sandbox = rekindle.sandbox("counter");
        assert_eq!(sandbox["state"], "running", "{point}");
        assert!(sandbox["problem"].as_str().unwrap().contains("checkpoint"), "{point}");
        assert_eq!(!rekindle.images().is_empty(), SEALED.contains(&point), "{point}");
        for image in rekindle.images() {
            rekindle.ok(&["verify", &image]);
        }
        rekindle.assert_tidy();
        rekindle.ok(&["checkpoint", "counter", "--to", "later", "--stop"]);
        rekindle.ok(&["restore", "later", "-d"]);
        rekindle.goes_on("counter");
    }
}

fn a_restore_that_fails_or_is_killed_anywhere_gives_everything_back(program: &[&str]) {
    let mut rekindle = counting(program);
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--leave-running"]);
    for point in
        ["restore-checked", "restore-created", "restore-vacant", "restore-complete", "restore-running"]
    {
        for action in ["fail", "kill"] {
            rekindle.set_fault(Some(&format!("{point}:{action}")));
            let error = rekindle.refused(&["restore", "image", "--name", "again", "-d"]);
            assert!(error.contains(if action == "fail" { "injected" } else { "lost" }), "{point}: {error}");
            rekindle.set_fault(None);
            if action == "kill" {
                let all = rekindle.json(&["ps", "-a"]);
                let again = all["sandboxes"].as_array().unwrap().iter().find(|one| one["name"] == "again");
                if let Some(again) = again {
                    assert_eq!(again["pid"], 0, "{point}: {again}");
                    assert!(again["problem"].as_str().unwrap().contains("daemon"), "{again}");
                }
            }
            rekindle.assert_tidy();
            rekindle.goes_on("counter");
        }
    }
    rekindle.kill_daemon();
    rekindle.ok(&["restore", "image", "--name", "again", "-d"]);
    rekindle.goes_on("again");
}

/// Counts on the GPU as another user than the daemon.
const NOBODY: &str = concat!(
    "import ctypes, os, sys, time\n",
    "code = compile(open('",
    env!("CARGO_MANIFEST_DIR"),
    "/tests/programs/bump.py').read(), 'bump', 'exec')\n",
    "os.setgroups([])\nos.setresgid(65534, 65534, 65534)\nos.setresuid(65534, 65534, 65534)\nexec(code)"
);

#[test]
fn a_program_that_becomes_another_user_has_its_gpu() {
    let rekindle = Rekindle::new();
    rekindle.start("nobody", &["python3", "-c", NOBODY]);
    rekindle.goes_on("nobody");
    rekindle.ok(&["sleep", "nobody"]);
    rekindle.goes_on("nobody");
    // By itself CRIU reads the limits of another user's processes with a capability that not every root has.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    if u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 24) == 0 {
        let found = rekindle.output(&["doctor", "--json"]).stdout;
        assert!(String::from_utf8_lossy(&found).contains("without CAP_SYS_RESOURCE"));
        assert!(rekindle.daemon_log().contains("without CAP_SYS_RESOURCE"));
    }
    rekindle.ok(&["checkpoint", "nobody", "--to", "image", "--stop"]);
    rekindle.ok(&["restore", "image", "-d"]);
    rekindle.goes_on("nobody");
}

/// By Ctrl-C, and by a command that is killed: the program goes on without an image, or the image is there and that is said.
fn a_checkpoint_is_cancelled_until_the_image_is_there(program: &[&str]) {
    let mut rekindle = counting(program);
    for point in ["quiesced", "frozen", "before-commit"] {
        for (signal, end) in [(2, "--stop"), (9, "--stop"), (2, "--leave-running")] {
            rekindle.set_fault(Some(&format!("{point}:hang")));
            let command = rekindle
                .command(&["checkpoint", "counter", "--to", "image", end])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            rekindle.reached(point);
            kill(command.id() as i32, signal);
            let mut command = command;
            if signal == 9 {
                command.wait().unwrap();
            } else {
                let mut said = [0; 20];
                command.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
                assert_eq!(said, *b"rekindle: cancelling");
            }
            rekindle.let_go(point);
            let output = end_of(command);
            if signal == 2 {
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.code(), Some(130), "{error}");
                assert!(error.contains("cancelled: the program goes on, and there is no image"), "{error}");
            }
            rekindle.goes_on("counter");
            wait("the checkpoint to be undone", || rekindle.sandbox("counter")["state"] == "running");
            assert!(rekindle.images().is_empty());
            rekindle.assert_tidy();
        }
    }
    rekindle.set_fault(Some("in-image:hang"));
    let command = rekindle
        .command(&["checkpoint", "counter", "--to", "image", "--stop"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    rekindle.reached("in-image");
    kill(command.id() as i32, 2);
    let mut command = command;
    let mut said = [0; 20];
    command.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    rekindle.let_go("in-image");
    let output = end_of(command);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && error.contains("too late to cancel"), "{error}");
    assert_eq!(
        (rekindle.images(), &rekindle.sandbox("counter")["state"]),
        (vec!["image".to_string()], &"stopped".into())
    );
    rekindle.ok(&["restore", "image", "-d"]);
    rekindle.goes_on("counter");
}

fn an_image_is_taken_after_the_daemon_was_killed(program: &[&str]) {
    let rekindle = counting(program);
    rekindle.kill_daemon();
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
    rekindle.ok(&["restore", "image", "-d"]);
    rekindle.kill_daemon();
    rekindle.goes_on("counter");
    assert_eq!(rekindle.sandbox("counter")["problem"], serde_json::Value::Null);
    rekindle.ok(&["kill", "counter"]);
    rekindle.assert_tidy();
}

fn a_full_disk_undoes_the_checkpoint(program: &[&str]) {
    for bytes in ["0", "1000", "20000", "100000"] {
        let mut rekindle = Rekindle::new();
        rekindle.set_disk_bytes(bytes);
        rekindle.start("counter", program);
        rekindle.goes_on("counter");
        let output = rekindle.output(&["checkpoint", "counter", "--to", "image", "--leave-running"]);
        let error = String::from_utf8_lossy(&output.stderr);
        // CRIU's own writes are not counted, so that the largest budget may be enough.
        assert!(output.status.success() || error.contains("disk full"), "{bytes}: {error}");
        assert_eq!(output.status.success(), !rekindle.images().is_empty(), "{bytes}");
        assert!(bytes.len() > 4 || !output.status.success(), "{bytes} bytes were enough");
        rekindle.goes_on("counter");
        rekindle.assert_tidy();
    }
}

#[test]
fn one_checkpoint_at_a_time() {
    let mut rekindle = Rekindle::new();
    rekindle.set_fault(Some("frozen:hang"));
    rekindle.start("counter", &COUNTER);
    rekindle.goes_on("counter");
    let mut first = rekindle.command(&["checkpoint", "counter", "--to", "a", "--stop"]).spawn().unwrap();
    wait("the first", || rekindle.sandbox("counter")["state"] == "checkpointing");
    let error = rekindle.refused(&["checkpoint", "counter", "--to", "b", "--stop"]);
    assert!(error.contains("is checkpointing just now"), "{error}");
    rekindle.kill_daemon();
    assert!(!first.wait().unwrap().success());
    rekindle.set_fault(None);
    rekindle.goes_on("counter");
}

#[test]
fn images_in_use_and_unknown_are_named() {
    let rekindle = counting(&COUNTER);
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--leave-running"]);
    let again = rekindle.refused(&["checkpoint", "counter", "--to", "image", "--leave-running"]);
    assert!(again.contains("\"image\" already exists"), "{again}");
    for command in [["inspect", "none"], ["verify", "none"], ["rm", "none"], ["restore", "none"]] {
        assert!(rekindle.refused(&command).contains("\"none\""));
    }
    let taken = rekindle.refused(&["restore", "image", "--name", "counter", "-d"]);
    assert!(taken.contains("\"counter\" exists"), "{taken}");
    rekindle.ok(&["restore", "image", "-d"]);
    assert!(rekindle.refused(&["checkpoint", "nobody", "--to", "x", "--stop"]).contains("\"nobody\""));
    rekindle.goes_on("counter");
}

#[test]
fn damage_of_the_cpu_half_is_found_before_the_program_runs() {
    let rekindle = counting(&COUNTER);
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
    let path = rekindle.json(&["inspect", "image"])["path"].as_str().unwrap().to_string();
    let largest = fs::read_dir(format!("{path}/pages")).unwrap().map(|entry| entry.unwrap().path());
    let largest = largest.max_by_key(|path| path.metadata().unwrap().blocks()).unwrap();
    // What CRIU acts on, what it copies, what the program maps.
    for damaged in [format!("{path}/cpu/files.img").into(), format!("{path}/cpu/pages-1.img").into(), largest]
    {
        let file = fs::File::options().read(true).write(true).open(&damaged).unwrap();
        // SAFETY: an open file.
        let first = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA) } as u64;
        let mut sound = [0];
        file.read_exact_at(&mut sound, first).unwrap();
        file.write_all_at(&[sound[0] ^ 1], first).unwrap();
        let name = damaged.file_name().unwrap().to_str().unwrap();
        assert!(rekindle.refused(&["verify", "image"]).contains(name), "{name}");
        let error = rekindle.refused(&["restore", "image", "--name", "x", "-d"]);
        assert!(error.contains(name) && error.contains("is damaged"), "{error}");
        assert_eq!(rekindle.json(&["ps", "-a"])["sandboxes"].as_array().unwrap().len(), 1);
        rekindle.assert_tidy();
        file.write_all_at(&sound, first).unwrap();
    }
    rekindle.ok(&["restore", "image", "--name", "x", "-d"]);
    rekindle.goes_on("x");
}

#[test]
fn a_mapped_file_that_changed_is_named() {
    let rekindle = Rekindle::new();
    let file = rekindle.path("data");
    std::fs::write(&file, vec![7; 8192]).unwrap();
    let code = format!(
        "import mmap, time\nf = open({file:?})\nm = mmap.mmap(f.fileno(), 0, prot=1)\nf.close()\nprint('ready', flush=True)\ntime.sleep(60)"
    );
    rekindle.start("mapped", &["python3", "-c", &code]);
    wait("the map", || rekindle.lines("mapped") == ["ready"]);
    rekindle.ok(&["checkpoint", "mapped", "--to", "image", "--stop"]);
    std::fs::write(&file, vec![8; 8192]).unwrap();
    let error = rekindle.refused(&["restore", "image", "-d"]);
    assert!(error.contains(file.to_str().unwrap()), "{error}");
    std::fs::remove_file(&file).unwrap();
    let error = rekindle.refused(&["restore", "image", "-d"]);
    assert!(error.contains(file.to_str().unwrap()), "{error}");
}

#[test]
fn what_criu_refuses_is_explained_and_the_program_goes_on() {
    let rekindle = Rekindle::new();
    let code = "import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.connect(('127.0.0.1', 9))\ns.setsockopt(socket.IPPROTO_UDP, 1, 1)\ns.send(b'waits')\nn = 0\nwhile True:\n    print(n, flush=True)\n    n += 1\n    time.sleep(0.02)";
    rekindle.start("corked", &["python3", "-c", code]);
    rekindle.goes_on("corked");
    let error = rekindle.refused(&["checkpoint", "corked", "--to", "image", "--stop"]);
    assert!(error.contains("CRIU") && error.contains("socket"), "{error}");
    rekindle.goes_on("corked");
    assert!(rekindle.images().is_empty());
    rekindle.assert_tidy();
}

#[test]
fn a_restored_program_has_every_processor_that_it_had() {
    let rekindle = Rekindle::new();
    let threads = "import threading\nfor _ in range(20): threading.Thread(target=threading.Event().wait, daemon=True).start()\n";
    rekindle.start("wide", &["python3", "-c", &(threads.to_string() + COUNTER[2])]);
    rekindle.goes_on("wide");
    rekindle.ok(&["checkpoint", "wide", "--to", "wide", "--stop"]);
    rekindle.ok(&["restore", "wide", "-d", "--name", "again"]);
    let pid = &rekindle.sandbox("again")["pid"];
    let allowed = |status: &Path| {
        let text = fs::read_to_string(status).unwrap();
        text.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap().to_string()
    };
    let tasks: Vec<_> = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().collect();
    assert_eq!(tasks.len(), 21);
    for task in tasks {
        assert_eq!(allowed(&task.path().join("status")), allowed(Path::new("/proc/self/status")));
    }
    rekindle.goes_on("again");
}

#[test]
fn files_in_shared_memory_come_along() {
    let rekindle = Rekindle::new();
    let code = "import mmap, os, time\nf = open('/dev/shm/kept', 'w+b')\nf.truncate(4096)\nm = mmap.mmap(f.fileno(), 4096)\nn = 0\nwhile True:\n    m[:20] = b'%020d' % n\n    print(int(m[:20]), flush=True)\n    n += 1\n    time.sleep(0.02)";
    rekindle.start("shared", &["python3", "-c", code]);
    rekindle.goes_on("shared");
    rekindle.ok(&["checkpoint", "shared", "--to", "image", "--stop"]);
    let last: u64 = rekindle.lines("shared").last().unwrap().parse().unwrap();
    rekindle.ok(&["restore", "image", "-d"]);
    rekindle.goes_on("shared");
    assert_eq!(rekindle.count("shared")[0], last + 1);
}
