//! `checkpoint --pid`: programs without a GPU, their output, and what is refused.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

use crate::driver::support::{Program, goes_on, numbers, output, tracer};
use crate::harness::{COUNTER, Rekindle, child, wait};

#[test]
fn a_program_goes_on_beside_its_image_and_the_image_continues_it() {
    let rekindle = Rekindle::new();
    let mut program = Program::counter(&rekindle);
    let out = output(&rekindle);
    let report = rekindle.json(&["checkpoint", "--pid", &program.pid(), "--to", "one", "--leave-running"]);
    assert_eq!((&report["mode"], &report["gpu_processes"]), (&"driver".into(), &0.into()));
    goes_on(&out);
    rekindle.ok(&["checkpoint", "--pid", &program.pid(), "--to", "two", "--stop"]);
    assert!(!program.wait().unwrap().success());
    let stopped = numbers(&out);
    assert_eq!(rekindle.json(&["inspect", "two"])["mode"], "driver");
    rekindle.ok(&["verify", "two"]);
    assert_eq!(rekindle.json(&["restore", "two", "-d", "--name", "again"])["mode"], "driver");
    goes_on(&out);
    assert_eq!(numbers(&out)[stopped.len()], stopped.last().unwrap() + 1);
    assert_eq!(rekindle.sandbox("again")["mode"], "driver");
    rekindle.ok(&["checkpoint", "again", "--to", "three", "--stop"]);
    rekindle.ok(&["restore", "three", "-d", "--name", "again"]);
    goes_on(&out);
    rekindle.ok(&["kill", "again"]);
    rekindle.assert_tidy();
}

#[test]
fn a_tree_comes_back_whole() {
    let rekindle = Rekindle::new();
    let code = "import os, time\nr, w = os.pipe()\nif os.fork() == 0:\n    n = 0\n    while True:\n        os.write(w, b'%d\\n' % n)\n        n += 1\n        time.sleep(0.02)\nwhile True:\n    os.write(1, os.read(r, 100))";
    let out = output(&rekindle);
    let program = Program::start(Command::new("python3").args(["-c", code]), &out);
    rekindle.ok(&["checkpoint", "--pid", &program.pid(), "--to", "tree", "--stop"]);
    rekindle.ok(&["restore", "tree", "-d"]);
    goes_on(&out);
}

#[test]
fn a_program_of_these_tests_leaves_no_process() {
    let rekindle = Rekindle::new();
    let code = "import os, time\nif child := os.fork():\n    print(child, flush=True)\ntime.sleep(1000)";
    let out = output(&rekindle);
    let program = Program::start(Command::new("python3").args(["-c", code]), &out);
    let child = numbers(&out)[0] as i32;
    drop(program);
    wait("the child's end", || rekindle_sandbox::process::is_zombie(child));
}

#[test]
fn connections_of_a_program_with_itself_come_along() {
    let rekindle = Rekindle::new();
    let code = "import os, socket, time\ns = socket.create_server(('127.0.0.1', 0))\na = socket.create_connection(s.getsockname())\nb, _ = s.accept()\nif os.fork() == 0:\n    n = 0\n    while True:\n        a.sendall(b'%08d' % n)\n        n += 1\n        time.sleep(0.02)\nwhile True:\n    print(int(b.recv(8, socket.MSG_WAITALL)), flush=True)";
    let out = output(&rekindle);
    let mut program = Program::start(Command::new("python3").args(["-c", code]), &out);
    let taken = rekindle.output(&["checkpoint", "--pid", &program.pid(), "--to", "talks", "--stop"]);
    if !taken.status.success() {
        let said = String::from_utf8(taken.stderr).unwrap();
        assert!(said.contains("Operation not supported"), "{said}");
        eprintln!("skipped: this kernel's internet sockets need CRIU 4.2");
        goes_on(&out);
        return;
    }
    program.wait().unwrap();
    rekindle.ok(&["restore", "talks", "-d", "--name", "talks"]);
    goes_on(&out);
    rekindle.ok(&["checkpoint", "talks", "--to", "again", "--stop"]);
    rekindle.ok(&["restore", "again", "-d", "--name", "talks"]);
    goes_on(&out);
    rekindle.ok(&["kill", "talks"]);
}

#[test]
fn memory_that_processes_share_comes_back_shared() {
    let rekindle = Rekindle::new();
    // The child counts in memory that has no name; a memfd holds what must not change.
    let code = "import hashlib, mmap, os, time\nm = mmap.mmap(-1, 1 << 20)\nf = os.memfd_create('kept')\nos.write(f, os.urandom(3 << 20))\nos.ftruncate(f, 5 << 20)\nk = mmap.mmap(f, 5 << 20)\nd = hashlib.sha256(k).digest()\nm[:20] = b'%020d' % 0\nif os.fork() == 0:\n    n = 0\n    while True:\n        assert hashlib.sha256(k).digest() == d\n        n += 1\n        m[:20] = b'%020d' % n\n        while int(m[20:40].strip(b'\\0') or 0) < n:\n            time.sleep(0.005)\nn = 0\nwhile True:\n    while int(m[:20]) <= n:\n        time.sleep(0.005)\n    n = int(m[:20])\n    print(n, flush=True)\n    m[20:40] = b'%020d' % n";
    let out = output(&rekindle);
    let program = Program::start(Command::new("python3").args(["-c", code]), &out);
    for image in ["one", "two"] {
        let after = if image == "one" { "--leave-running" } else { "--stop" };
        rekindle.ok(&["checkpoint", "--pid", &program.pid(), "--to", image, after]);
    }
    rekindle.ok(&["restore", "two", "-d"]);
    goes_on(&out);
}

#[test]
fn what_went_to_a_pipe_goes_to_the_log_after_a_restore() {
    let rekindle = Rekindle::new();
    let mut command = Command::new(COUNTER[0]);
    command.args(&COUNTER[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut program = Program::spawn(&mut command);
    let mut pipe = program.stdout.take().unwrap();
    let mut first = [0];
    pipe.read_exact(&mut first).unwrap();
    rekindle.ok(&["checkpoint", "--pid", &program.pid(), "--to", "piped", "--stop"]);
    let mut before = String::from_utf8(first.to_vec()).unwrap();
    pipe.read_to_string(&mut before).unwrap();
    let last: u64 = before.lines().last().unwrap().parse().unwrap();
    rekindle.ok(&["restore", "piped", "-d", "--name", "piped"]);
    rekindle.goes_on("piped");
    assert_eq!(rekindle.count("piped")[0], last + 1);
    rekindle.ok(&["checkpoint", "piped", "--to", "later", "--stop"]);
    let last: u64 = rekindle.lines("piped").last().unwrap().parse().unwrap();
    rekindle.ok(&["restore", "later", "-d", "--name", "piped"]);
    rekindle.goes_on("piped");
    assert_eq!(rekindle.count("piped")[0], last + 1, "nothing between pipe and log is lost or told twice");
}

#[test]
fn what_went_to_a_terminal_goes_to_the_log_after_a_restore() {
    let rekindle = Rekindle::new();
    let code = "import os, pty, sys\npid, terminal = pty.fork()\nif pid == 0:\n    os.execvp('python3', ['python3', '-c', sys.argv[1]])\nprint(pid, flush=True)\nwhile True:\n    os.read(terminal, 1000)";
    let out = output(&rekindle);
    let _terminal = Program::start(Command::new("python3").args(["-c", code, COUNTER[2]]), &out);
    let pid = numbers(&out)[0].to_string();
    std::thread::sleep(std::time::Duration::from_millis(300));
    rekindle.ok(&["checkpoint", "--pid", &pid, "--to", "terminal", "--stop"]);
    rekindle.ok(&["restore", "terminal", "-d", "--name", "terminal"]);
    rekindle.goes_on("terminal");
    assert!(rekindle.count("terminal")[0] > 0);
}

#[test]
fn a_file_in_shared_memory_comes_along() {
    let rekindle = Rekindle::new();
    let name = format!("/dev/shm/rekindle-test-{}", std::process::id());
    fs::write(&name, "0".repeat(4096)).unwrap();
    let code = format!(
        "import mmap, time\nf = open({name:?}, 'r+')\nm = mmap.mmap(f.fileno(), 4096)\nn = 0\nwhile True:\n    m[:20] = b'%020d' % n\n    print(int(m[:20]), flush=True)\n    n += 1\n    time.sleep(0.02)"
    );
    let out = output(&rekindle);
    let program = Program::start(Command::new("python3").args(["-c", &code]), &out);
    rekindle.ok(&["checkpoint", "--pid", &program.pid(), "--to", "shared", "--stop"]);
    fs::remove_file(&name).unwrap();
    rekindle.ok(&["restore", "shared", "-d"]);
    goes_on(&out);
}

#[test]
fn what_cannot_be_taken_is_refused_by_name() {
    let rekindle = Rekindle::new();
    let refused = |pid: &str, more: &[&str]| {
        let mut arguments = vec!["checkpoint", "--pid", pid, "--to", "image", "--leave-running"];
        arguments.extend(more);
        rekindle.refused(&arguments)
    };
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    assert!(refused(&gone.id().to_string(), &[]).contains("there is no process"));
    assert!(refused("0", &[]).contains("there is no process"));
    assert!(refused("1", &[]).contains("ancestor"));
    // A container shows none.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        assert!(refused("2", &[]).contains("thread of the kernel"));
    }
    let plain = rekindle.command(&["checkpoint", "--to", "image", "--leave-running", "--pid"]);
    let mut inside = Command::new("sh");
    inside.args(["-c", r#""$@" $$ || exit 1"#, "sh"]).arg(plain.get_program()).args(plain.get_args());
    inside.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let error = inside.output().unwrap().stderr;
    assert!(String::from_utf8_lossy(&error).contains("ancestor of the command that asks"), "{error:?}");
    let own = rekindle.daemon_pid().unwrap().to_string();
    assert!(refused(&own, &[]).contains("daemon itself"));

    let program = Program::counter(&rekindle);
    let error = refused(&program.pid(), &["--mode", "driver"]);
    assert!(error.contains("uses a GPU") && error.contains("--mode auto"), "{error}");
    assert!(refused(&program.pid(), &["--mode", "sandbox"]).contains("--mode driver"));

    rekindle.start("inside", &COUNTER);
    let inside = rekindle.sandbox("inside")["pid"].to_string();
    assert!(refused(&inside, &[]).contains("sandbox \"inside\""));
    goes_on(&output(&rekindle));
    assert!(rekindle.images().is_empty());
    rekindle.assert_tidy();
}

#[test]
fn a_container_s_process_is_refused_by_its_namespace() {
    let rekindle = Rekindle::new();
    let mut outside = Command::new("unshare");
    outside.args(["--pid", "--fork", "--kill-child"]).args(COUNTER);
    let out = output(&rekindle);
    let program = Program::start(&mut outside, &out);
    let inside = child(program.id() as i32).unwrap().to_string();
    let error = rekindle.refused(&["checkpoint", "--pid", &inside, "--to", "image", "--stop"]);
    assert!(error.contains("another pid namespace"), "{error}");
    goes_on(&out);
}

#[test]
fn a_session_from_outside_of_the_namespace_is_refused_with_the_way_out() {
    let rekindle = Rekindle::new();
    let plain = rekindle.command(&["checkpoint", "--to", "image", "--leave-running", "--pid"]);
    let mut inside = Command::new("unshare");
    inside.args([
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        r#"sleep 60 & exec "$@" $!"#,
        "sh",
    ]);
    inside.arg(plain.get_program()).args(plain.get_args());
    inside.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let error = inside.output().unwrap();
    let error = String::from_utf8_lossy(&error.stderr);
    assert!(error.contains("session") && error.contains("`setsid`"), "{error}");
}

#[test]
fn uninterruptible_sleep_is_told_with_its_thread() {
    let rekindle = Rekindle::new();
    let mut program = Program::spawn(Command::new(rekindle.disk_sleep()).stdout(Stdio::piped()));
    let mut ready = [0; 5];
    program.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    let error = rekindle.refused(&["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop"]);
    assert!(error.contains("uninterruptible sleep") && error.contains(&program.pid()), "{error}");
    crate::harness::kill(child(program.id() as i32).unwrap(), 9);
}

#[test]
fn a_traced_program_is_refused_with_its_tracer() {
    let rekindle = Rekindle::new();
    let mut first = Rekindle::new();
    first.set_fault(Some("frozen:hang"));
    let program = Program::counter(&rekindle);
    let mut busy = first
        .command(&["checkpoint", "--pid", &program.pid(), "--to", "a", "--leave-running"])
        .spawn()
        .unwrap();
    first.reached("frozen");
    let again = first.refused(&["checkpoint", "--pid", &program.pid(), "--to", "b", "--leave-running"]);
    assert!(again.contains("being checkpointed just now"), "{again}");
    let other = rekindle.refused(&["checkpoint", "--pid", &program.pid(), "--to", "b", "--leave-running"]);
    assert!(other.contains("traces its process"), "{other}");
    first.kill_daemon();
    busy.wait().unwrap();
    wait("CRIU to let go", || tracer(&program.pid()) == 0);
    goes_on(&output(&rekindle));
    rekindle.ok(&["checkpoint", "--pid", &program.pid(), "--to", "b", "--leave-running"]);
}

/// It goes on, and nobody takes it for one that has ended.
#[test]
fn a_program_whose_first_thread_has_ended_is_refused_for_that() {
    let code = "import ctypes, threading, time\n\
        def count():\n\
        \x20   for number in range(10**9):\n\
        \x20       print(number, flush=True)\n\
        \x20       time.sleep(0.02)\n\
        threading.Thread(target=count).start()\n\
        ctypes.CDLL(None).syscall(60, 0)\n";
    let rekindle = Rekindle::new();
    let program = Program::start(Command::new("python3").args(["-c", code]), &output(&rekindle));
    rekindle.start("x", &["python3", "-c", code]);
    wait("the other program", || rekindle.lines("x").len() > 3);
    for who in [["--pid", &program.pid()].as_slice(), &["x"]] {
        let words = [&["checkpoint"][..], who, &["--to", "image", "--leave-running"]].concat();
        let error = rekindle.refused(&words);
        assert!(error.contains("the first thread of process") && error.contains("CRIU cannot"), "{error}");
    }
    goes_on(&output(&rekindle));
    rekindle.assert_tidy();
}

#[test]
fn an_image_is_not_lost_to_another_that_was_to_have_its_name() {
    let mut rekindle = Rekindle::new();
    rekindle.set_fault(Some("frozen:hang"));
    let mut first = Program::counter(&rekindle);
    let second = Program::start(Command::new(COUNTER[0]).args(&COUNTER[1..]), &rekindle.path("second"));
    let pid = first.pid();
    let mut command = rekindle.command(&["checkpoint", "--pid", &pid, "--to", "image", "--stop"]);
    let taken = command.spawn().unwrap();
    rekindle.reached("frozen");
    let again = ["checkpoint", "--pid", &second.pid(), "--to", "image", "--leave-running"];
    let error = rekindle.refused(&again);
    assert!(error.contains("\"image\" is being made just now"), "{error}");
    rekindle.let_go("frozen");
    assert!(crate::harness::end_of(taken).status.success());
    first.wait().unwrap();
    assert!(rekindle.refused(&again).contains("already exists"));
    goes_on(&rekindle.path("second"));
    rekindle.ok(&["restore", "image", "-d"]);
    goes_on(&output(&rekindle));
}

#[test]
fn a_missing_capability_is_named() {
    let rekindle = Rekindle::new();
    let program = Program::counter(&rekindle);
    let mut daemon = Command::new("setpriv");
    let plain = rekindle.daemon();
    daemon.args(["--bounding-set", "-sys_ptrace", "--inh-caps", "-all"]).arg(plain.get_program());
    daemon.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut daemon = Program(daemon.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait("the daemon", || rekindle.path("socket").exists());
    let error = rekindle.refused(&["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop"]);
    assert!(error.contains("CAP_SYS_PTRACE") && !error.contains("SYS_ADMIN"), "{error}");
    goes_on(&output(&rekindle));
    daemon.kill().unwrap();
}

#[test]
fn a_checkpoint_that_fails_or_is_killed_anywhere_is_undone() {
    for point in ["checkpoint-begun", "pages-begun", "pages-taken", "frozen", "before-commit"] {
        for action in ["fail", "kill"] {
            let mut rekindle = Rekindle::new();
            let program = Program::counter(&rekindle);
            rekindle.set_fault(Some(&format!("{point}:{action}")));
            let error = rekindle.refused(&["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop"]);
            assert!(error.contains(if action == "fail" { "injected" } else { "lost" }), "{point}: {error}");
            rekindle.set_fault(None);
            goes_on(&output(&rekindle));
            assert!(rekindle.images().is_empty());
            rekindle.assert_tidy();
            rekindle.ok(&["checkpoint", "--pid", &program.pid(), "--to", "image", "--leave-running"]);
        }
    }
}

#[test]
fn a_killed_criu_leaves_the_program_running() {
    let mut rekindle = Rekindle::new();
    rekindle.set_fault(Some("frozen:hang"));
    let program = Program::counter(&rekindle);
    let mut busy = rekindle
        .command(&["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop"])
        .spawn()
        .unwrap();
    // CRIU has written all when it asks for leave; before, its parasite may be at work in the program.
    rekindle.reached("frozen");
    crate::harness::kill(tracer(&program.pid()), 9);
    wait("the program", || tracer(&program.pid()) == 0);
    goes_on(&output(&rekindle));
    rekindle.kill_daemon();
    busy.wait().unwrap();
    rekindle.set_fault(None);
    assert!(rekindle.images().is_empty());
    rekindle.ok(&["checkpoint", "--pid", &program.pid(), "--to", "image", "--leave-running"]);
}

#[test]
fn a_criu_that_is_killed_while_it_sends_pages_leaves_no_image() {
    let mut rekindle = Rekindle::new();
    rekindle.set_fault(Some("pages-begun:hang"));
    let mut program = Program::counter(&rekindle);
    let mut busy = rekindle
        .command(&["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop"])
        .spawn()
        .unwrap();
    let pid = program.pid();
    wait("CRIU", || tracer(&pid) != 0);
    let criu = tracer(&pid);
    // It waits for the page server then, which waits for us.
    std::thread::sleep(std::time::Duration::from_millis(500));
    crate::harness::kill(criu, 9);
    wait("CRIU's end", || tracer(&pid) == 0);
    rekindle.kill_daemon();
    busy.wait().unwrap();
    rekindle.set_fault(None);
    assert!(rekindle.images().is_empty());
    rekindle.assert_tidy();
    // CRIU's code was in the program: it goes on, or has ended with it, and nothing holds it.
    std::thread::sleep(std::time::Duration::from_millis(300));
    if program.try_wait().unwrap().is_none() {
        goes_on(&output(&rekindle));
    }
}
