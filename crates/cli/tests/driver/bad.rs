//! Disks that are full and images that are damaged, in driver mode: one sentence, and the program goes on.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::driver::standin::Fixture;
use crate::driver::support::{Program, goes_on, output};
use crate::harness::{Rekindle, wait};

/// A file system in memory with so much room.
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn new(at: &Path, megabytes: u32) -> Mounted {
        let mut mount = Command::new("mount");
        let options = format!("size={megabytes}m,mode=0700");
        mount.args(["-t", "tmpfs", "-o", &options, "none"]).arg(at);
        assert!(mount.status().unwrap().success());
        Mounted(at.to_path_buf())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// CRIU's files, the driver's memory, the store's and the journal share it, so that each meets the end of it.
#[test]
fn a_disk_that_is_full_at_any_point_undoes_the_checkpoint() {
    for megabytes in [1, 2, 6, 12, 20, 32] {
        let scene = Fixture::new();
        let state = scene.rekindle.path("state");
        fs::create_dir(&state).unwrap();
        let _mounted = Mounted::new(&state, megabytes);
        let program = scene.start_with(1);
        for after in ["--stop", "--leave-running"] {
            let arguments = ["checkpoint", "--pid", &program.pid(), "--to", "image", after];
            let error = scene.rekindle.refused(&arguments);
            assert!(error.contains("full") || error.contains("No space left"), "{megabytes} MB: {error}");
            scene.go_on(1);
            assert!(scene.rekindle.images().is_empty());
            scene.assert_tidy();
        }
    }
}

#[test]
fn a_damaged_part_is_told_by_name_and_nothing_runs() {
    let scene = Fixture::new();
    let rekindle = &scene.rekindle;
    let program = scene.start_with(1);
    assert!(scene.checkpoint(&program, "image", "--stop").status.success());
    let inspected = rekindle.json(&["inspect", "image"]);
    let path = Path::new(inspected["path"].as_str().unwrap());
    let mut damaged = 0;
    for directory in ["cpu", "pages"] {
        for entry in fs::read_dir(path.join(directory)).unwrap() {
            let place = entry.unwrap().path();
            let bytes = fs::metadata(&place).unwrap().len();
            if bytes == 0 {
                continue;
            }
            let file = fs::File::options().read(true).write(true).open(&place).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, bytes / 2).unwrap();
            file.write_all_at(&[byte[0] ^ 1], bytes / 2).unwrap();
            let error = rekindle.refused(&["restore", "image", "-d", "--name", "x"]);
            let name = place.file_name().unwrap().to_str().unwrap();
            assert!(error.contains(name) && error.contains("damaged"), "{name}: {error}");
            assert!(rekindle.refused(&["verify", "image"]).contains(name));
            file.write_all_at(&byte, bytes / 2).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged >= 10, "{damaged}");
    scene.assert_tidy();
    rekindle.ok(&["restore", "image", "-d"]);
    scene.go_on(1);
}

#[test]
fn a_daemon_without_privileges_names_what_it_lacks() {
    let rekindle = Rekindle::new();
    let program = Program::counter(&rekindle);
    let plain = rekindle.daemon();
    let mut daemon = Command::new("setpriv");
    daemon.args(["--bounding-set", "-all", "--inh-caps", "-all"]).arg(plain.get_program());
    daemon.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let daemon = Program(daemon.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait("the daemon", || rekindle.path("socket").exists());
    let error = rekindle.refused(&["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop"]);
    for name in ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_CHECKPOINT_RESTORE"] {
        assert!(error.contains(name), "{error}");
    }
    goes_on(&output(&rekindle));
    drop(daemon);
}
