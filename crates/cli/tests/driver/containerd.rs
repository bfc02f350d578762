//! Containers of containerd's, by a containerd of the test's own.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tempfile::TempDir;

use crate::driver::container::{Base, podman, root_archive, said, search_path};
use crate::harness::{Rekindle, wait};

const IMAGE: &str = "localhost/rekindle-test:base";
/// Counts into its own root file system.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n >> /count; sleep 0.02; done";

struct Containerd {
    /// Runtimes know containers by this and their names, whichever containerd they are of.
    namespace: String,
    directory: TempDir,
    service: Child,
}

impl Containerd {
    /// None, and the reason on standard error, where containerd cannot take a container by itself.
    fn new() -> Option<Containerd> {
        match Containerd::start().and_then(|made| made.probe().map(|()| made)) {
            Ok(made) => Some(made),
            Err(reason) => {
                // Past what the test harness holds back of tests that pass.
                let _ = writeln!(
                    std::io::stderr(),
                    "skipped, for containerd cannot checkpoint a container here: {reason}"
                );
                None
            }
        }
    }

    fn start() -> Result<Containerd, String> {
        let directory = tempfile::tempdir().unwrap();
        let service = Containerd::serve(&directory, &search_path())?;
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("rekindle-test-{}-{number}", std::process::id());
        let made = Containerd { namespace, directory, service };
        let socket = made.socket();
        wait("containerd", || socket.exists());
        made.import();
        Ok(made)
    }

    fn serve(directory: &TempDir, path: &str) -> Result<Child, String> {
        let at = |name: &str| directory.path().join(name);
        let plugins =
            ["grpc.v1.cri", "snapshotter.v1.devmapper", "snapshotter.v1.btrfs", "snapshotter.v1.zfs"];
        let plugins = plugins.map(|name| format!("io.containerd.{name}"));
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = {plugins:?}\n[grpc]\naddress = {:?}\n",
            at("root"),
            at("state"),
            at("socket")
        );
        fs::write(at("config.toml"), config).unwrap();
        let log = fs::File::create(at("log")).unwrap();
        let mut command = Command::new("containerd");
        command.arg("--config").arg(at("config.toml")).env("PATH", path).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        command.spawn().map_err(|error| format!("containerd does not start: {error}"))
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Gives it an image, in the format of `docker save`.
    fn import(&self) {
        let place = tempfile::tempdir().unwrap();
        let layer = root_archive(place.path());
        let sum = Command::new("sha256sum").arg(&layer).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        let digest = format!("sha256:{}", sum.split_whitespace().next().unwrap());
        let rootfs = json!({ "type": "layers", "diff_ids": [digest] });
        let config = json!({ "architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs });
        let manifest = json!([{ "Config": "config.json", "RepoTags": [IMAGE], "Layers": ["root.tar"] }]);
        fs::write(place.path().join("config.json"), config.to_string()).unwrap();
        fs::write(place.path().join("manifest.json"), manifest.to_string()).unwrap();
        let image = place.path().join("image.tar");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(place.path()).arg("-cf").arg(&image);
        assert!(tar.args(["manifest.json", "config.json", "root.tar"]).status().unwrap().success());
        let imported = self.ctr(&["images", "import", "--snapshotter", "native", image.to_str().unwrap()]);
        assert!(imported.status.success(), "{}", said(&imported));
    }

    fn ctr(&self, words: &[&str]) -> Output {
        let mut command = Command::new("ctr");
        command.env("CONTAINERD_ADDRESS", self.socket()).env("CONTAINERD_NAMESPACE", &self.namespace);
        command.args(words).stdin(Stdio::null()).output().unwrap()
    }

    fn begin(&self, name: &str) -> Result<(), String> {
        let usr = "type=bind,src=/usr,dst=/usr,options=rbind:ro";
        let words = ["run", "--detach", "--snapshotter", "native", "--mount", usr, IMAGE, name];
        let begun = self.ctr(&[&words[..], &["/bin/sh", "-c", COUNT]].concat());
        begun.status.success().then_some(()).ok_or_else(|| said(&begun))
    }

    /// Whether containerd by itself can take a container here.
    fn probe(&self) -> Result<(), String> {
        self.begin("probe")?;
        let taken = self.ctr(&["containers", "checkpoint", "--task", "probe", "localhost/probe:1"]);
        self.remove("probe");
        self.ctr(&["images", "rm", "--sync", "localhost/probe:1"]);
        taken.status.success().then_some(()).ok_or_else(|| said(&taken))
    }

    fn remove(&self, name: &str) {
        self.ctr(&["tasks", "rm", "--force", name]);
        self.ctr(&["containers", "rm", name]);
    }

    fn is_running(&self, name: &str) -> bool {
        let tasks = self.ctr(&["tasks", "ls"]);
        let tasks = String::from_utf8_lossy(&tasks.stdout).into_owned();
        tasks.lines().any(|line| line.starts_with(&format!("{name} ")) && line.contains("RUNNING"))
    }

    /// What the container has counted, none of it missing.
    fn counted(&self, name: &str) -> Vec<u64> {
        let output = self.ctr(&["tasks", "exec", "--exec-id", "look", name, "/bin/cat", "/count"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let all: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        assert!(all.windows(2).all(|pair| pair[1] == pair[0] + 1), "{all:?}");
        all
    }

    fn goes_on(&self, name: &str) {
        let before = self.counted(name).len();
        wait("the container to go on", || self.counted(name).len() > before + 3);
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let names = self.ctr(&["containers", "ls", "-q"]);
        for name in String::from_utf8_lossy(&names.stdout).lines() {
            self.remove(name);
        }
        let _ = self.service.kill();
        let _ = self.service.wait();
    }
}

#[test]
fn a_container_of_containerd_s_goes_on_from_its_image_with_its_files() {
    let Some(containerd) = Containerd::new() else { return };
    let mut rekindle = Rekindle::with(&[
        ("CONTAINERD_ADDRESS", containerd.socket().to_str().unwrap()),
        ("CONTAINERD_SNAPSHOTTER", "native"),
        ("REKINDLE_PROVE", "on"),
    ]);
    let name = format!("rekindle-test-{}-both", std::process::id());
    let name = name.as_str();
    containerd.begin(name).unwrap();
    wait("the container", || !containerd.counted(name).is_empty());
    if let Some(base) = Base::new() {
        // Podman has one of that name too.
        let created = podman(&["create", "--name", &base.own(name), base.image(), "/bin/true"]);
        assert!(created.status.success(), "{}", said(&created));
        let error = rekindle.refused(&["checkpoint", "--container", name, "--to", "none", "--stop"]);
        assert!(
            error.contains(&format!("podman, containerd in its namespace {}", containerd.namespace)),
            "{error}"
        );
    }
    let checkpoint = |to: &str, after: &str| {
        rekindle.json(&["checkpoint", "--container", name, "--engine", "containerd", "--to", to, after])
    };
    let prove = ["--engine", "containerd", "--to", "none", "--leave-running", "--prove"];
    let error = rekindle.refused(&[&["checkpoint", "--container", name][..], &prove[..]].concat());
    assert!(error.contains("cannot be proven") && error.contains("leave --prove out"), "{error}");
    let report = checkpoint("one", "--leave-running");
    assert_eq!(report["container"], "containerd");
    let warning = report["warnings"][0].as_str().unwrap();
    assert!(warning.contains("not proven") && warning.contains("containerd"), "{warning}");
    containerd.goes_on(name);
    checkpoint("two", "--stop");
    assert!(!containerd.is_running(name));
    let error = rekindle.refused(&["restore", "two"]);
    assert!(error.contains(name) && error.contains("--name"), "{error}");
    containerd.remove(name);
    assert_eq!(rekindle.ok(&["restore", "two"]).trim(), name);
    assert!(containerd.counted(name).len() > 3, "what it had written before is there");
    containerd.goes_on(name);
    rekindle.ok(&["restore", "two", "--name", "again"]);
    containerd.goes_on("again");
    assert_eq!(containerd.ctr(&["images", "ls", "-q"]).stdout, format!("{IMAGE}\n").as_bytes());

    // One that cannot be kept goes on.
    rekindle.set_fault(Some("before-commit"));
    let words = ["checkpoint", "--container", "again", "--engine", "containerd", "--to", "bad", "--stop"];
    assert!(rekindle.refused(&words).contains("injected"));
    containerd.goes_on("again");
    rekindle.set_fault(None);
    rekindle.assert_tidy();
}

#[test]
fn a_containerd_that_is_not_there_or_has_no_criu_says_so() {
    let Some(mut containerd) = Containerd::new() else { return };
    let rekindle = Rekindle::with(&[("CONTAINERD_ADDRESS", containerd.socket().to_str().unwrap())]);
    let refused =
        |name: &str| rekindle.refused(&["checkpoint", "--container", name, "--to", "none", "--stop"]);
    containerd.service.kill().unwrap();
    containerd.service.wait().unwrap();
    assert!(refused("rekindle-test-none").contains("containerd could not look for the container"));
    fs::remove_file(containerd.socket()).unwrap();
    containerd.service = Containerd::serve(&containerd.directory, "/usr/bin:/bin:/usr/sbin").unwrap();
    wait("containerd", || containerd.ctr(&["version"]).status.success());
    containerd.begin("without").unwrap();
    let error = refused("without");
    assert!(error.contains("its runtime finds no CRIU; start containerd with"), "{error}");
    assert!(containerd.is_running("without"));
}
