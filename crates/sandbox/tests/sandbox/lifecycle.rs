//! Starting, signalling and ending programs in sandboxes.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::{self, OwnedSandbox, RunDirectory, able, criu, images, program};
use rekindle_sandbox::process;
use rekindle_sandbox::{Adopted, DumpSpec, Error, Exit, RestoreSpec, Restored, Sandbox, Spec};

const SOON: Option<Duration> = Some(Duration::from_secs(120));

fn run(place: &RunDirectory, args: &[&str]) -> Exit {
    let sandbox = OwnedSandbox(Sandbox::start(&place.spec(), &program(args)).unwrap());
    sandbox.wait_exit(SOON).unwrap().expect("it ends soon")
}

#[test]
fn a_programs_end_is_known_and_recorded() {
    if !able() {
        return;
    }
    for (script, expected) in [
        ("exit 5", Exit::Code(5)),
        ("kill -9 $$", Exit::Signal(9)),
        ("sleep 1000 & sleep 1000 & exit 0", Exit::Code(0)),
    ] {
        let place = RunDirectory::new();
        assert_eq!(run(&place, &["sh", "-c", script]), expected, "{script}");
        let Adopted::Ended(exit) = Sandbox::adopt(place.dir.path()).unwrap() else { panic!("it has ended") };
        assert_eq!(exit, Some(expected));
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(Sandbox::adopt(empty.path()).unwrap(), Adopted::Ended(None)));
}

#[test]
fn a_program_sees_its_own_processes_directory_environment_and_run_directory() {
    if !able() {
        return;
    }
    let place = RunDirectory::new();
    let script = "echo $$ $GREETING $PWD; ls /proc | grep -c '^[0-9]'; ls /run/rekindle; readlink /proc/self/fd/0; \
        ls /dev/shm; ls /proc/$$/fd; ps -o sid= -p $$";
    assert_eq!(run(&place, &["sh", "-c", script]), Exit::Code(0));
    let log = place.log();
    let lines: Vec<_> = log.lines().map(str::trim).collect();
    assert_eq!(lines[0], "1000 hello /tmp", "{log}");
    assert!(lines[1].parse::<u32>().unwrap() < 6, "init, the shell and its two children: {log}");
    assert!(lines.contains(&"ring-0") && lines.contains(&"/dev/null"), "{log}");
    assert!(lines.ends_with(&["0", "1", "2", "1000"]), "no descriptor of ours, a session leader: {log}");
}

#[test]
fn what_cannot_start_says_why() {
    if !able() {
        return;
    }
    let place = RunDirectory::new();
    let start =
        |args: &[&str]| Sandbox::start(&RunDirectory::new().spec(), &program(args)).map(|_| ()).unwrap_err();
    let error = start(&["no-such-program"]);
    assert!(matches!(error, Error::Start { .. }) && error.to_string().contains("no-such-program"), "{error}");
    assert!(start(&["/etc/passwd"]).to_string().contains("/etc/passwd is not executable"));
    assert!(start(&[]).to_string().contains("empty"));
    let mut elsewhere = program(&["true"]);
    elsewhere.cwd = "/no/such/place".into();
    let error = Sandbox::start(&place.spec(), &elsewhere).unwrap_err();
    assert!(error.to_string().contains("/no/such/place"), "{error}");

    let mut spec = RunDirectory::new().spec();
    spec.run_dir = "/no/such/run".into();
    let error = Sandbox::start(&spec, &program(&["true"])).unwrap_err();
    assert!(matches!(error, Error::Setup { .. }) && error.to_string().contains("/no/such/run"), "{error}");
    spec.init = vec!["/bin/true".into()];
    assert!(matches!(Sandbox::start(&spec, &program(&["true"])).unwrap_err(), Error::Setup { .. }));
    spec.init = vec!["/no/such/init".into()];
    assert!(matches!(Sandbox::start(&spec, &program(&["true"])).unwrap_err(), Error::Io { .. }));
}

#[test]
fn killing_a_sandbox_ends_all_that_is_in_it() {
    if !able() {
        return;
    }
    let place = RunDirectory::new();
    let script = "trap '' TERM; setsid sleep 4321 & echo ready; wait; wait";
    let sandbox = OwnedSandbox(Sandbox::start(&place.spec(), &program(&["sh", "-c", script])).unwrap());
    let deadline = Instant::now() + Duration::from_secs(120);
    while !place.log().contains("ready") || sandbox.pids().len() < 2 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    sandbox.signal(libc::SIGTERM).unwrap();
    assert_eq!(sandbox.wait_exit(Some(Duration::from_millis(50))).unwrap(), None, "it ignores that");
    let pids: Vec<_> = sandbox.pids().into_values().collect();
    sandbox.kill().unwrap();
    assert!(pids.iter().all(|pid| !fs::exists(format!("/proc/{pid}")).unwrap()), "{pids:?}");
    assert!(matches!(sandbox.signal(libc::SIGTERM), Err(Error::Ended { .. })));
    assert_eq!(sandbox.exit_status().unwrap(), Some(Exit::Signal(libc::SIGKILL)));
    sandbox.kill().unwrap();
}

#[test]
fn the_outer_process_passes_signals_on_and_ends_with_the_program() {
    if !able() {
        return;
    }
    let place = RunDirectory::new();
    let script = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let sandbox = OwnedSandbox(Sandbox::start(&place.spec(), &program(&["sh", "-c", script])).unwrap());
    while !place.log().contains("ready") {
        std::thread::sleep(Duration::from_millis(5));
    }
    let outer = process::parent(sandbox.init_pid()).unwrap();
    // SAFETY: kill has no memory to harm.
    assert_eq!(unsafe { libc::kill(outer, libc::SIGTERM) }, 0);
    assert_eq!(sandbox.wait_exit(SOON).unwrap(), Some(Exit::Code(3)));
    assert!(place.log().ends_with("told\n"));
    assert!(!fs::exists(format!("/proc/{outer}")).unwrap(), "it has been reaped");
}

#[test]
fn what_criu_finds_out_is_kept_for_the_next_sandbox() {
    if !able() {
        return;
    }
    let (keep, dir) = images();
    let cache = keep.path().join("criu.kdat");
    let place = RunDirectory::new();
    let spec = Spec { criu_cache: Some(cache.clone()), ..place.spec() };
    let sandbox = OwnedSandbox(Sandbox::start(&spec, &program(&["sleep", "1000"])).unwrap());
    for round in ["first", "second"] {
        let images = dir.join(round);
        sandbox.dump(&DumpSpec::new(criu(), &images, round == "first"), |_| Ok::<(), Error>(())).unwrap();
    }
    assert_eq!(sandbox.wait_exit(SOON).unwrap(), Some(Exit::Stopped));
    let tmpfs = nix::sys::statfs::statfs("/run").unwrap().filesystem_type() == nix::sys::statfs::TMPFS_MAGIC;
    assert!(tmpfs || cache.exists());
    let place = RunDirectory::new();
    let sandbox = Spec { criu_cache: Some(cache), ..place.spec() };
    let restore = RestoreSpec::new(sandbox, criu(), Duration::from_secs(120));
    let restore = RestoreSpec { steps_told: true, ..restore };
    let (sandbox, report) =
        support::restore(&restore, &dir.join("second"), |_: &Restored| Ok::<(), Error>(())).unwrap();
    let sandbox = OwnedSandbox(sandbox);
    let log = fs::read_to_string(&report.log).unwrap();
    sandbox.kill().unwrap();
    assert!(log.contains("Loaded kdat cache") || !log.contains("kdat"), "{log}");
}

#[test]
fn a_restore_that_cannot_be_or_takes_too_long_ends() {
    if !able() {
        return;
    }
    let restore = |images_dir: &std::path::Path, timeout| {
        let place = RunDirectory::new();
        let spec = RestoreSpec::new(place.spec(), criu(), timeout);
        support::restore(&spec, images_dir, |_: &Restored| Ok::<(), Error>(())).map(|_| ()).unwrap_err()
    };
    let (keep, dir) = images();
    assert!(matches!(restore(&dir, Duration::from_secs(5)), Error::NoImages { .. }));
    let error = restore(keep.path(), Duration::from_secs(5));
    assert!(matches!(&error, Error::NoImages { .. }), "{error}");
    fs::write(keep.path().join("inventory.img"), "text").unwrap();
    let error = restore(keep.path(), Duration::from_secs(5));
    assert!(matches!(&error, Error::Criu { .. }), "{error}");
    let error = restore(keep.path(), Duration::ZERO);
    assert!(matches!(&error, Error::Criu { cause, .. } if cause.contains("longer")), "{error}");
}
