//! Whole programs through start, dump and restore, with a real CRIU.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{
    OwnedSandbox, RunDirectory, Running, able, counter, criu, images, program, restore, spec_in,
};
use rekindle_sandbox::{
    Adopted, DumpSpec, Error, Exit, Frozen, Inventory, KnownFiles, RestoreSpec, Restored, Sandbox, process,
};
use serde_json::Value;

const SOON: Option<Duration> = Some(Duration::from_secs(120));

fn nothing(_: &Frozen<'_>) -> Result<(), Error> {
    Ok(())
}

/// That `after` is the same program as `before`, some time later.
fn assert_went_on(before: &Value, after: &Value) {
    for same in ["pid", "deleted", "named", "memfd", "events", "private", "threads"] {
        assert_eq!(before[same], after[same], "{same}: {before} then {after}");
    }
    assert_eq!(after["private"], true);
    assert_eq!(after["deleted"], true);
    for counter in ["a", "b", "child", "shared"] {
        let (old, new) = (before[counter].as_u64().unwrap(), after[counter].as_u64().unwrap());
        assert!(new > old && new < old + 10_000, "{counter}: {old} then {new}");
    }
}

#[test]
fn a_dumped_and_ended_program_goes_on_where_it_was() {
    if !able() {
        return;
    }
    let mut first = Running::start();
    let before = first.ask("say");
    assert_eq!(before["pid"], 1000);
    let inode = first.inode;
    let (_keep, dir) = images();
    let report = first.dump(&dir, false, nothing).unwrap();
    assert!(report.stats.pages_written > 100, "{report:?}");
    assert_eq!(first.sandbox.wait_exit(SOON).unwrap(), Some(Exit::Stopped));
    assert!(first.place.log().ends_with("said\n"));

    let complete = |restored: &Restored| {
        assert!(restored.pids().contains_key(&1000), "{restored:?}");
        Ok::<(), Error>(())
    };
    let (mut second, report) = Running::restore_with(&dir, inode, complete).unwrap();
    eprintln!("{report:?}");
    let ring = second.place.dir.path().join("ring-0");
    let mut bytes = fs::read(&ring).unwrap();
    bytes[4096] = 42;
    fs::write(&ring, bytes).unwrap();
    let after = second.ask("say");
    assert_went_on(&before, &after);
    assert_eq!(after["ring"], 1, "the shared mapping is the new, empty file");
    assert_eq!(after["ring_daemon"], 42, "it is shared with us");
    second.sandbox.flush(Duration::from_secs(120)).unwrap();
    assert_eq!(second.place.log(), "said\n", "the log starts afresh");
    assert_eq!(second.sandbox.host_pid(1000), second.sandbox.root_pid());

    // And once more, from what was restored.
    let inode = second.inode;
    let (_keep, dir) = images();
    second.dump(&dir, false, nothing).unwrap();
    let (mut third, _) = Running::restore(&dir, inode).unwrap();
    assert_went_on(&after, &third.ask("state"));
    assert!(third.try_ask("exit").is_err());
    assert_eq!(third.sandbox.wait_exit(SOON).unwrap(), Some(Exit::Code(7)));
    assert_eq!(third.place.log(), "leaving\n");
}

#[test]
fn a_program_goes_on_while_it_is_dumped_twice() {
    if !able() {
        return;
    }
    let mut running = Running::start();
    let inode = running.inode;
    let mut before = running.ask("state");
    let mut taken = Vec::new();
    for _ in 0..2 {
        let (keep, dir) = images();
        let frozen = |frozen: &Frozen<'_>| {
            assert!(frozen.pids().contains_key(&1000));
            let inventory = frozen.inventory(running.sandbox.begin_inventory(&KnownFiles::default())?)?;
            assert!(inventory.files.iter().any(|file| file.path.to_string_lossy().contains("libc.so")));
            assert!(!inventory.files.iter().any(|file| file.path.starts_with("/run")));
            assert!(inventory.highest_pid > 1000);
            assert_eq!(inventory.check(&Default::default()), []);
            Ok::<(), Error>(())
        };
        running.dump(&dir, true, frozen).unwrap();
        let after = running.ask("state");
        assert_went_on(&before, &after);
        taken.push((keep, dir, before));
        before = after;
    }
    assert_eq!(running.sandbox.exit_status().unwrap(), None);
    for (_, dir, before) in &taken {
        let (mut restored, _) = Running::restore(dir, inode).unwrap();
        assert_went_on(before, &restored.ask("state"));
    }
}

#[test]
fn a_tree_of_processes_keeps_what_it_holds() {
    if !able() {
        return;
    }
    let mut first = Running::start_script("tree.py");
    let before = first.ask("");
    let inode = first.inode;
    let (_keep, dir) = images();
    first.dump(&dir, true, nothing).unwrap();
    assert_eq!(first.ask(""), before);
    let (_keep, dir) = images();
    first.dump(&dir, false, nothing).unwrap();
    let (mut second, _) = Running::restore(&dir, inode).unwrap();
    assert_eq!(second.ask(""), before);
    assert_eq!(second.ask(""), before);
    fs::remove_dir_all(before["folder"].as_str().unwrap()).unwrap();
}

#[test]
fn a_program_goes_on_with_its_own_log() {
    if !able() {
        return;
    }
    let (keep, dir) = images();
    let log = keep.path().join("own.log");
    // A file in /dev/shm would come from the image.
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.log");
    let script = format!("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done > {}", own.display());
    let place = RunDirectory::new();
    let sandbox = OwnedSandbox(Sandbox::start(&place.spec(), &program(&["sh", "-c", &script])).unwrap());
    let lines = |file: &std::path::Path| fs::read_to_string(file).unwrap_or_default().lines().count();
    let grow_from = |start: usize| {
        let deadline = Instant::now() + Duration::from_secs(120);
        while lines(&own) < start + 5 {
            assert!(Instant::now() < deadline, "the log does not grow");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    grow_from(0);
    let mut inventory = Inventory::default();
    let take = |frozen: &Frozen<'_>| {
        inventory = frozen.inventory(sandbox.begin_inventory(&KnownFiles::default())?)?;
        fs::copy(&own, &log).unwrap();
        Ok::<(), Error>(())
    };
    sandbox.dump(&DumpSpec::new(criu(), &dir, true), take).unwrap();
    let at_dump = lines(&log);
    grow_from(at_dump);
    sandbox.kill().unwrap();
    let at_end = lines(&own);
    assert_eq!(inventory.check(&Default::default()), []);
    let place = RunDirectory::new();
    let mut spec = RestoreSpec::new(place.spec(), criu(), Duration::from_secs(120));
    let error = restore(&spec, &dir, |_: &Restored| Ok::<(), Error>(())).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("bad size"), "{error}");
    let place = RunDirectory::new();
    spec.sandbox = place.spec();
    spec.inventory = Some(&inventory);
    let (sandbox, _) = restore(&spec, &dir, |_: &Restored| Ok::<(), Error>(())).unwrap();
    let sandbox = OwnedSandbox(sandbox);
    grow_from(at_end);
    sandbox.kill().unwrap();
    let text = fs::read_to_string(&own).unwrap();
    // What it wrote after the dump it writes again, over the same.
    let counted: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert!(counted.iter().copied().eq(1..=counted.len()), "{text}");
    fs::remove_file(&own).unwrap();
    assert!(inventory.check(&Default::default())[0].to_string().contains("own.log"));
}

#[test]
fn one_dump_is_restored_several_times_at_once() {
    if !able() {
        return;
    }
    let mut first = Running::start();
    let before = first.ask("state");
    let inode = first.inode;
    let (_keep, dir) = images();
    first.dump(&dir, true, nothing).unwrap();
    std::thread::scope(|scope| {
        let restores: Vec<_> =
            (0..3).map(|_| scope.spawn(|| Running::restore(&dir, inode).unwrap().0)).collect();
        let mut restored: Vec<_> = restores.into_iter().map(|thread| thread.join().unwrap()).collect();
        for each in &mut restored {
            assert_went_on(&before, &each.ask("state"));
        }
    });
    assert_went_on(&before, &first.ask("state"));
}

#[test]
fn a_failed_step_leaves_the_program_running() {
    if !able() {
        return;
    }
    let mut running = Running::start();
    let before = running.ask("state");
    let (_keep, dir) = images();
    for leave_running in [true, false] {
        let error = running.dump(&dir, leave_running, |_| Err("the disk is full")).unwrap_err();
        assert!(matches!(&error, Error::Hook(_)), "{error}");
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("disk is full"));
        assert_went_on(&before, &running.ask("state"));
    }
    let inode = running.inode;
    running.dump(&dir, true, nothing).unwrap();
    let error = Running::restore_with(&dir, inode, |_| Err("no GPU memory")).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Hook(_)), "{error}");
}

/// Not a test of its own: what `a_killed_daemon_harms_nothing` runs and kills.
#[test]
fn doomed_daemon() {
    let (Some(task), Some(dir)) = (std::env::var_os("DOOMED_TASK"), std::env::var_os("DOOMED_DIR")) else {
        return;
    };
    // SAFETY: kill has no memory to harm.
    let die = || unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    if task == "start" {
        let mut spec = spec_in(dir.as_ref());
        spec.log = std::env::var_os("DOOMED_LOG").map(Into::into);
        Sandbox::start(&spec, &counter()).unwrap();
        die();
    }
    let images = std::env::var_os("DOOMED_IMAGES").unwrap();
    if task == "restore" {
        let spec = RestoreSpec::new(spec_in(dir.as_ref()), criu(), Duration::from_secs(120));
        let hook = |_: &Restored| {
            die();
            Ok::<(), Error>(())
        };
        restore(&spec, images.as_ref(), hook).unwrap();
    }
    let Adopted::Running(sandbox) = Sandbox::adopt(dir.as_ref()).unwrap() else { panic!("it runs") };
    let mut spec = DumpSpec::new(criu(), images.as_ref(), task == "leave");
    spec.external_sockets = vec![std::env::var("DOOMED_INODE").unwrap().parse().unwrap()];
    let hook = |_: &Frozen<'_>| {
        die();
        Ok::<(), Error>(())
    };
    sandbox.dump(&spec, hook).unwrap();
}

#[test]
fn a_killed_daemon_harms_nothing() {
    if !able() {
        return;
    }
    let place = Arc::new(RunDirectory::new());
    let (keep, dir) = images();
    let log = keep.path().join("kept.log");
    let doomed = |task: &str, inode: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "checkpoint::doomed_daemon"]).env("DOOMED_TASK", task);
        command.env("DOOMED_DIR", place.dir.path()).env("DOOMED_LOG", &log);
        command.env("DOOMED_IMAGES", &dir).env("DOOMED_INODE", inode.to_string());
        let status = command.output().unwrap().status;
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    };
    doomed("start", 0);
    let Adopted::Running(sandbox) = Sandbox::adopt(place.dir.path()).unwrap() else { panic!("it runs") };
    let mut running = Running::new(sandbox, place.clone(), place.accept());
    let before = running.ask("say");
    running.sandbox.flush(Duration::from_secs(120)).unwrap();
    assert_eq!(
        fs::read_to_string(&log).unwrap(),
        "started 1000\nsaid\n",
        "the log is where it was asked for"
    );
    for task in ["leave", "stop"] {
        doomed(task, running.inode);
        assert_went_on(&before, &running.ask("state"));
    }
    running.dump(&dir, true, nothing).unwrap();
    running.sandbox.signal(libc::SIGTERM).unwrap();
    assert_eq!(running.sandbox.wait_exit(SOON).unwrap(), Some(Exit::Signal(libc::SIGTERM)));
    let Adopted::Ended(exit) = Sandbox::adopt(place.dir.path()).unwrap() else { panic!("it has ended") };
    assert_eq!(exit, Some(Exit::Signal(libc::SIGTERM)));
}

/// Kills the CRIU of a sandbox and waits until it is gone.
fn kill_criu(sandbox: &Sandbox) {
    let (init, root) = (sandbox.init_pid(), sandbox.root_pid().unwrap());
    let is_criu = |pid: &i32| *pid != root && process::parent(*pid) == Some(init);
    let criu = process::tree(init).into_iter().find(is_criu).expect("a CRIU");
    process::Handle::open(criu).unwrap().signal(libc::SIGKILL).unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !process::is_zombie(criu) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_program_whose_criu_is_killed_stands_until_its_image_is_settled_and_goes_on() {
    if !able() {
        return;
    }
    let mut running = Running::start();
    let before = running.ask("say");
    let (_keep, dir) = images();
    for refused in [false, true] {
        let dumped = running.dump(&dir, true, |_| {
            kill_criu(&running.sandbox);
            let root = running.sandbox.root_pid().unwrap();
            let count = || fs::read_to_string(format!("/proc/{root}/sched")).unwrap_or_default();
            let switches =
                |text: String| text.lines().find(|line| line.starts_with("nr_switches")).map(str::to_owned);
            // What CRIU had changed is undone by calls that the program is made to make.
            let deadline = Instant::now() + Duration::from_secs(120);
            let mut before = None;
            while before != switches(count()) {
                assert!(Instant::now() < deadline, "it runs beside its image");
                before = switches(count());
                std::thread::sleep(Duration::from_millis(100));
            }
            assert!(process::tracer(root).is_some(), "nobody holds it");
            if refused { Err(Error::NoProcess { pid: 0 }) } else { Ok(()) }
        });
        let told = dumped.unwrap_err().to_string();
        assert!(refused || told.contains("it was killed by signal 9"), "{told}");
        assert_went_on(&before, &running.ask("state"));
    }
    running.dump(&dir, true, nothing).unwrap();
    assert_went_on(&before, &running.ask("state"));
}

#[test]
fn a_criu_that_is_killed_once_all_is_written_changes_nothing() {
    if !able() {
        return;
    }
    let mut first = Running::start();
    let before = first.ask("say");
    let (_keep, dir) = images();
    let killed = |_: &Frozen<'_>| -> Result<(), Error> {
        kill_criu(&first.sandbox);
        Ok(())
    };
    first.dump(&dir, false, killed).unwrap();
    assert_eq!(first.sandbox.wait_exit(SOON).unwrap(), Some(Exit::Stopped));
    let (mut second, _) = Running::restore(&dir, first.inode).unwrap();
    assert_went_on(&before, &second.ask("state"));
}

#[test]
fn a_daemon_killed_in_a_restore_leaves_nothing() {
    if !able() {
        return;
    }
    let place = RunDirectory::new();
    let sandbox = OwnedSandbox(Sandbox::start(&place.spec(), &program(&["sleep", "1000"])).unwrap());
    let (_keep, dir) = images();
    sandbox.dump(&DumpSpec::new(criu(), &dir, false), nothing).unwrap();
    assert_eq!(sandbox.wait_exit(SOON).unwrap(), Some(Exit::Stopped));
    let place = RunDirectory::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "checkpoint::doomed_daemon"]).env("DOOMED_TASK", "restore");
    command.env("DOOMED_DIR", place.dir.path()).env("DOOMED_IMAGES", &dir);
    let status = command.output().unwrap().status;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    assert!(matches!(Sandbox::adopt(place.dir.path()).unwrap(), Adopted::Ended(None)));
    let ours = format!("{}", place.dir.path().display());
    let deadline = Instant::now() + Duration::from_secs(120);
    let mounted = || {
        let mut pids = fs::read_dir("/proc").unwrap().flatten();
        let name = ours.rsplit('/').next().unwrap();
        pids.any(|pid| fs::read_to_string(pid.path().join("mountinfo")).is_ok_and(|text| text.contains(name)))
    };
    while mounted() {
        assert!(Instant::now() < deadline, "a process of the sandbox is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_criu_refuses_is_told_and_the_program_goes_on() {
    if !able() {
        return;
    }
    let mut running = Running::start();
    let before = running.ask("state");
    let (_keep, dir) = images();
    let refused = |running: &Running| match running.dump(&dir, false, nothing).unwrap_err() {
        Error::Criu { cause, log, .. } => {
            assert!(log.unwrap().starts_with(&dir));
            cause
        }
        other => panic!("{other}"),
    };
    let pid = nix::unistd::Pid::from_raw(running.sandbox.root_pid().unwrap());
    nix::sys::ptrace::seize(pid, nix::sys::ptrace::Options::empty()).unwrap();
    let error = running.dump(&dir, false, nothing).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains("traces"), "{error}");
    nix::sys::ptrace::interrupt(pid).unwrap();
    nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::__WALL)).unwrap();
    nix::sys::ptrace::detach(pid, None).unwrap();

    running.ask("cork");
    let cause = refused(&running);
    assert!(cause.contains("corked"), "{cause}");
    let after = running.ask("uncork");
    assert_went_on(&before, &after);

    running.dump(&dir, true, nothing).unwrap();
    running.ask("orphan");
    let cause = refused(&running);
    assert!(cause.contains("python3") && cause.contains("outlived its parent"), "{cause}");
    assert_went_on(&after, &running.ask("state"));
}

#[test]
fn a_broken_dump_is_refused_and_leaves_nothing_behind() {
    if !able() {
        return;
    }
    let first = Running::start();
    let inode = first.inode;
    let (_keep, dir) = images();
    first.dump(&dir, false, nothing).unwrap();
    assert_eq!(first.sandbox.wait_exit(SOON).unwrap(), Some(Exit::Stopped));
    let mut broken = 0;
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if ["core-1000.img", "files.img", "mm-1000.img", "pstree.img"].contains(&name.as_str()) {
            let whole = fs::read(&path).unwrap();
            fs::write(&path, &whole[..whole.len() / 2]).unwrap();
            let result = Running::restore(&dir, inode).map(|_| ());
            assert!(matches!(result, Err(Error::Criu { action: "restore", .. })), "{name}: {result:?}");
            fs::write(&path, whole).unwrap();
            broken += 1;
        }
    }
    assert_eq!(broken, 4);
    assert!(fs::read_dir("/proc").unwrap().flatten().all(|process| {
        let args = fs::read(process.path().join("cmdline")).unwrap_or_default();
        !String::from_utf8_lossy(&args).contains(&*dir.to_string_lossy())
    }));
    Running::restore(&dir, inode).unwrap();
}
