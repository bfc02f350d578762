//! Containers of Podman's: with the CPU half alone, and with a GPU half that the stand-in driver takes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::json;

use crate::driver::container_prove::has_proven;
use crate::driver::standin::Fixture;
use crate::driver::support::{numbers, tracer};
use crate::harness::{Rekindle, end_of, kill, wait};

/// What a machine may allow that does not give its containers more than it has itself.
const LIMITS: [&str; 5] = ["--network=none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"];
/// Counts into its own root file system, and beside it what it finds there when it begins.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n >> /count; sleep 0.02; done";

/// The private CRIU.
const CRIU: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.build/criu");

/// Where runtimes find it.
pub fn search_path() -> String {
    format!("{CRIU}:{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

pub fn podman(words: &[&str]) -> Output {
    Command::new("podman").args(words).stdin(Stdio::null()).output().unwrap()
}

/// An image with directories alone, and the host's `/usr` mounted where its containers run.
pub struct Base {
    image: String,
    names: Mutex<Vec<String>>,
    _turn: MutexGuard<'static, ()>,
}

impl Base {
    /// None, and the reason on standard error, where Podman cannot take a container and bring it back.
    pub fn new() -> Option<Base> {
        // One after the other: they share Podman's storage.
        static TURN: OnceLock<Mutex<()>> = OnceLock::new();
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let turn = TURN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let image = format!("localhost/rekindle-test-{}-{number}", std::process::id());
        let base = Base { image, names: Mutex::default(), _turn: turn };
        match base.build().and_then(|()| base.probe()) {
            Ok(()) => Some(base),
            Err(reason) => {
                // Past what the test harness holds back of tests that pass.
                let _ = writeln!(
                    std::io::stderr(),
                    "skipped, for Podman cannot checkpoint a container here: {reason}"
                );
                None
            }
        }
    }

    pub fn image(&self) -> &str {
        &self.image
    }

    fn build(&self) -> Result<(), String> {
        let directory = tempfile::tempdir().unwrap();
        let archive = root_archive(directory.path());
        let mut import = Command::new("podman");
        let import = import.arg("import").arg(&archive).arg(&self.image).output();
        let import = import.map_err(|error| format!("podman does not start: {error}"))?;
        import.status.success().then_some(()).ok_or_else(|| said(&import))
    }

    /// Whether Podman by itself can take a container here and bring it back.
    fn probe(&self) -> Result<(), String> {
        static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
        FOUND.get_or_init(|| self.try_podman()).clone()
    }

    fn try_podman(&self) -> Result<(), String> {
        let path = search_path();
        let name = self.own(&self.named("probe"));
        let start = self.words("runc", &["--detach", "--name", &name], &["/bin/sleep", "1000"]);
        let start: Vec<_> = start.iter().map(String::as_str).collect();
        for words in [&start[..], &["container", "checkpoint", &name], &["container", "restore", &name]] {
            let mut command = Command::new("podman");
            let output = command.args(words).env("PATH", &path).stdin(Stdio::null()).output();
            let output = output.map_err(|error| format!("podman does not start: {error}"))?;
            if !output.status.success() {
                return Err(said(&output));
            }
        }
        Ok(())
    }

    fn named(&self, name: &str) -> String {
        format!("{}-{name}", self.image.trim_start_matches("localhost/"))
    }

    fn words(&self, runtime: &str, options: &[&str], command: &[&str]) -> Vec<String> {
        let mut words = vec!["--runtime", runtime, "run", "--volume", "/usr:/usr:ro"];
        words.extend(LIMITS);
        words.extend(options);
        words.push(&self.image);
        words.extend(command);
        words.into_iter().map(String::from).collect()
    }

    pub fn start(&self, name: &str, options: &[&str], command: &[&str]) -> String {
        let name = self.own(&self.named(name));
        let options = [&["--detach", "--name", &name], options].concat();
        let words = self.words("runc", &options, command);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let output = podman(&words);
        assert!(output.status.success(), "{}", said(&output));
        name
    }

    pub fn own(&self, name: &str) -> String {
        self.names.lock().unwrap().push(name.to_string());
        name.to_string()
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        for name in self.names.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = Command::new("podman").args(["rm", "--force", "--time", "0", name]).output();
        }
        let _ = Command::new("podman").args(["rmi", "--force", &self.image]).output();
    }
}

/// A device that is described to container engines: the stand-in driver, with all that it needs in a container.
struct Device {
    name: String,
    file: PathBuf,
}

impl Device {
    fn describe(scene: &Fixture, programs: &Path) -> Device {
        let mounts = scene.paths().into_iter().chain([programs.to_path_buf()]);
        let mounts: Vec<_> = mounts
            .map(|path| json!({ "hostPath": path, "containerPath": path, "options": ["rbind"] }))
            .collect();
        let variables: Vec<_> = scene.variables().map(|(name, value)| format!("{name}={value}")).collect();
        let kind = format!("rekindle.test/gpu{}", std::process::id());
        let node = json!({ "path": "/dev/standin-gpu", "type": "c", "major": 1, "minor": 3 });
        let edits = json!({ "env": variables, "mounts": mounts, "deviceNodes": [node] });
        let devices = json!([{ "name": "all", "containerEdits": edits }]);
        let description = json!({ "cdiVersion": "0.3.0", "kind": kind, "devices": devices });
        let directory = Path::new("/var/run/cdi");
        fs::create_dir_all(directory).unwrap();
        let file = directory.join(format!("rekindle-test-{}.json", std::process::id()));
        fs::write(&file, description.to_string()).unwrap();
        Device { name: format!("{kind}=all"), file }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_string()
}

/// A root file system with directories alone, in which the host's `/usr` is to be mounted.
pub fn root_archive(directory: &Path) -> PathBuf {
    let root = directory.join("root");
    for name in ["dev", "etc", "proc", "run", "sys", "tmp", "usr", "var"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    for name in ["bin", "lib", "lib64", "sbin"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name)).unwrap();
    }
    let archive = directory.join("root.tar");
    let status = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status();
    assert!(status.unwrap().success());
    archive
}

/// What the container has counted, none of it missing.
pub fn counted(name: &str) -> Vec<u64> {
    let output = podman(&["exec", name, "/bin/cat", "/count"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let all: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    assert!(all.windows(2).all(|pair| pair[1] == pair[0] + 1), "{all:?}");
    all
}

pub fn goes_on(name: &str) {
    let before = counted(name).len();
    wait("the container to go on", || counted(name).len() > before + 3);
}

pub fn is_running(name: &str) -> bool {
    let output = podman(&["inspect", "--format", "{{.State.Status}}", name]);
    String::from_utf8_lossy(&output.stdout).trim() == "running"
}

#[test]
fn a_container_goes_on_beside_its_image_and_the_image_continues_it_with_its_files() {
    let Some(base) = Base::new() else { return };
    let rekindle = Rekindle::new();
    let name = base.start("cpu", &[], &["/bin/sh", "-c", COUNT]);
    wait("the container", || !counted(&name).is_empty());
    let report = rekindle.json(&["checkpoint", "--container", &name, "--to", "one", "--leave-running"]);
    assert_eq!((&report["container"], &report["gpu_processes"]), (&"podman".into(), &0.into()));
    goes_on(&name);
    rekindle.ok(&["checkpoint", "--container", &name, "--to", "two", "--stop"]);
    assert!(!is_running(&name));
    rekindle.ok(&["verify", "two"]);
    let taken = rekindle.refused(&["restore", "two"]);
    assert!(taken.contains(&name) && taken.contains("--name"), "{taken}");
    assert!(podman(&["rm", &name]).status.success());
    assert_eq!(rekindle.ok(&["restore", "two"]).trim(), name);
    assert!(counted(&name).len() > 3, "what it had written before is there");
    goes_on(&name);
    let second = base.own(&format!("{name}-again"));
    rekindle.ok(&["restore", "two", "--name", &second]);
    goes_on(&second);
    // Its files are as old as its memory, also in the image of one that went on.
    let third = base.own(&format!("{name}-first"));
    rekindle.ok(&["restore", "one", "--name", &third]);
    goes_on(&third);
    rekindle.assert_tidy();
}

#[test]
fn a_container_s_gpu_half_is_taken_and_brought_back() {
    let Some(base) = Base::new() else { return };
    let mut scene = Fixture::new();
    let command = scene.command(2);
    let words: Vec<_> = command.iter().map(String::as_str).collect();
    let device = Device::describe(&scene, Path::new(words[1]).parent().unwrap());
    let name = base.start("gpu", &["--device", &device.name], &words);
    wait("the program", || (0..2).all(|number| !numbers(&scene.output(number)).is_empty()));
    let prove = ["checkpoint", "--container", &name, "--to", "one", "--leave-running", "--prove"];
    let report = scene.rekindle.json(&prove);
    assert_eq!(report["gpu_processes"], 2);
    assert!(has_proven(&report) && report["warnings"] == json!([]), "{report}");
    scene.go_on(2);

    // An image that cannot be made leaves it running, also after Podman has stopped it.
    for point in ["detached", "frozen", "before-commit"] {
        scene.rekindle.set_fault(Some(point));
        let error = scene.rekindle.refused(&["checkpoint", "--container", &name, "--to", "bad", "--stop"]);
        assert!(error.contains("injected"), "{error}");
        scene.go_on(2);
    }
    scene.rekindle.set_fault(None);

    scene.rekindle.ok(&["checkpoint", "--container", &name, "--to", "two", "--stop"]);
    assert!(!is_running(&name) && podman(&["rm", &name]).status.success());
    let inspected = scene.rekindle.json(&["inspect", "two"]);
    assert_eq!(inspected["gpus"].as_array().unwrap().len(), 2);
    scene.write("gpus", "1 H200 100000000 50000000\n");
    let error = scene.rekindle.refused(&["restore", "two"]);
    assert!(error.contains("2 GPUs and this one has 1 GPU"), "{error}");
    scene.write("gpus", "1 H200 100000000 50000000\n2 H200 100000000 50000000\n");
    let hidden = device.file.with_extension("hidden");
    fs::rename(&device.file, &hidden).unwrap();
    let error = scene.rekindle.refused(&["restore", "two"]);
    assert!(error.contains(&format!("needs the device {}", device.name)), "{error}");
    fs::rename(&hidden, &device.file).unwrap();
    scene.rekindle.set_fault(Some("restore-complete"));
    assert!(scene.rekindle.refused(&["restore", "two"]).contains("injected"));
    assert!(!podman(&["container", "exists", &name]).status.success());
    scene.rekindle.set_fault(None);
    let report = scene.rekindle.json(&["restore", "two"]);
    assert_eq!((&report["gpu_processes"], &report["warnings"]), (&2.into(), &json!([])));
    scene.grow(2);
    let script = "test -c /dev/standin-gpu && tr '\\0' '\\n' < /proc/1/environ";
    let output = podman(&["exec", &name, "/bin/sh", "-c", script]);
    let environment = String::from_utf8_lossy(&output.stdout);
    assert!(environment.lines().any(|line| line.starts_with("STANDIN_DIR=")), "{}", said(&output));

    // Memory lies beside the archive, and nothing of it is mapped once the driver has read it: it can be taken again.
    let path = PathBuf::from(inspected["path"].as_str().unwrap());
    let page_files = names_in(&path.join("pages"));
    assert!(page_files.len() >= 2 && names_in(&path.join("cpu")).len() > 10, "{page_files:?}");
    let archive = fs::metadata(path.join("part-container/archive.tar")).unwrap().len();
    assert!(archive < 4 << 20, "{archive}");
    for pid in processes_of(&name) {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        assert!(!page_files.iter().any(|file| maps.contains(file)), "{maps}");
    }
    scene.rekindle.ok(&["checkpoint", "--container", &name, "--to", "three", "--leave-running"]);
    scene.grow(2);
    assert!(podman(&["rm", "--force", "--time", "0", &name]).status.success());
    assert_eq!(scene.rekindle.json(&["restore", "three"])["gpu_processes"], 2);
    scene.grow(2);
    assert!(podman(&["rm", "--force", "--time", "0", &name]).status.success());

    // What is damaged or missing is never restored.
    for file in ["cpu/pages-1.img", "cpu/files.img", &format!("pages/{}", page_files[0])] {
        let (file, aside) = (path.join(file), scene.rekindle.path("aside"));
        let named = file.file_name().unwrap().to_str().unwrap();
        flip_a_byte(&file);
        let error = scene.rekindle.refused(&["restore", "two"]);
        assert!(error.contains("damaged") && error.contains(named), "{error}");
        flip_a_byte(&file);
        fs::rename(&file, &aside).unwrap();
        let error = scene.rekindle.refused(&["restore", "two"]);
        assert!(error.contains(named), "{error}");
        fs::rename(&aside, &file).unwrap();
        assert!(!podman(&["container", "exists", &name]).status.success());
    }
    scene.assert_tidy();
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_string()).collect()
}

/// Our pids of a container's processes.
fn processes_of(name: &str) -> Vec<i32> {
    let output = podman(&["top", name, "hpid"]);
    String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// The same one each time.
fn flip_a_byte(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut block = vec![0; 1 << 20];
    let (mut start, mut at) = (0, None);
    while at.is_none() {
        let count = file.read_at(&mut block, start).unwrap();
        assert!(count > 0, "{} is all zero", path.display());
        at =
            block[..count].iter().position(|byte| ![0, 255].contains(byte)).map(|found| start + found as u64);
        start += count as u64;
    }
    let (at, mut byte) = (at.unwrap(), [0]);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}

#[test]
fn a_container_goes_on_when_the_daemon_or_criu_is_killed() {
    let Some(base) = Base::new() else { return };
    let mut scene = Fixture::new();
    let command = scene.command(2);
    let words: Vec<_> = command.iter().map(String::as_str).collect();
    let device = Device::describe(&scene, Path::new(words[1]).parent().unwrap());
    let name = base.start("killed", &["--device", &device.name], &words);
    wait("the program", || (0..2).all(|number| !numbers(&scene.output(number)).is_empty()));
    let words = ["checkpoint", "--container", &name, "--to", "image", "--stop"];
    for point in ["detached", "pages-taken", "frozen", "before-commit"] {
        scene.rekindle.set_fault(Some(&format!("{point}:kill")));
        // What fails for another reason leaves the daemon, and its helper with it.
        scene.kills_daemon(&words);
        // Nobody starts another daemon before this has been seen.
        scene.go_on(2);
        scene.wait_helper_end();
        // It may still be archiving.
        wait("Podman", || is_running(&name));
        scene.rekindle.set_fault(None);
        assert!(scene.rekindle.images().is_empty(), "{point}");
        scene.assert_tidy();
    }
    scene.rekindle.set_fault(Some("pages-taken:hang"));
    let beside = ["checkpoint", "--container", &name, "--to", "beside", "--leave-running"];
    // Podman tells nobody of a container that it takes an image of.
    let program = processes_of(&name)[0];
    let asked = scene.rekindle.command(&beside).stderr(Stdio::piped()).spawn().unwrap();
    scene.rekindle.reached("pages-taken");
    kill(tracer(&program.to_string()), 9);
    scene.rekindle.let_go("pages-taken");
    // Podman is asked a second time where CRIU ended before all was written.
    let output = end_of(asked);
    assert_eq!(scene.rekindle.images().len(), usize::from(output.status.success()), "{}", said(&output));
    scene.go_on(2);
    scene.rekindle.set_fault(None);
    scene.assert_tidy();
    scene.rekindle.ok(&words);
    assert!(!is_running(&name) && podman(&["rm", &name]).status.success());
    scene.rekindle.ok(&["restore", "image"]);
    scene.go_on(2);
}

#[test]
fn what_is_no_running_container_is_refused_by_name() {
    let Some(base) = Base::new() else { return };
    let rekindle = Rekindle::new();
    let refused = |name: &str| {
        rekindle.refused(&["checkpoint", "--container", name, "--to", "image", "--leave-running"])
    };
    assert!(refused("rekindle-test-none").contains("no container rekindle-test-none; asked: podman"));
    let engines = tempfile::tempdir().unwrap();
    let mut none = Rekindle::with(&[("PATH", engines.path().to_str().unwrap())]);
    none.set_environment("REKINDLE_CRIU_DIR", CRIU);
    let error = none.refused(&["checkpoint", "--container", "any", "--to", "image", "--stop"]);
    assert!(error.contains("podman or containerd, which is not installed"), "{error}");
    let name = base.start("ended", &[], &["/bin/true"]);
    wait("its end", || !is_running(&name));
    assert!(refused(&name).contains("not running"));
    assert!(rekindle.images().is_empty());
    rekindle.assert_tidy();
}
