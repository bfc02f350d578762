//! Images of containers are restored once beside their containers before they are ones.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use crate::driver::container::{Base, counted, goes_on, is_running, podman, said};
use crate::harness::{Rekindle, end_of, wait};

/// Has a socket with a path and open files in a directory of the machine's.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/generations/server.py");
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n >> /count; sleep 0.02; done";

struct Served {
    directory: TempDir,
    name: String,
}

impl Served {
    fn start(base: &Base, name: &str) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_str().unwrap();
        fs::write(directory.path().join("opened-file"), "contents").unwrap();
        let script = fs::canonicalize(SERVER).unwrap();
        let volumes = [format!("--volume={place}:{place}"), format!("--volume={0}:{0}:ro", script.display())];
        let command = ["/usr/bin/python3", script.to_str().unwrap(), place];
        let name = base.start(name, &[&volumes[0], &volumes[1]], &command);
        let served = Served { directory, name };
        wait("the server", || served.path("socket").exists());
        served.greets();
        served
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// It still has its socket, and nobody else does.
    fn greets(&self) {
        // It listens a moment after it has made the socket.
        wait("the server", || {
            let Ok(mut client) = UnixStream::connect(self.path("socket")) else { return false };
            let mut said = String::new();
            client.read_to_string(&mut said).is_ok() && said == "here"
        });
    }
}

pub fn has_proven(report: &Value) -> bool {
    let mut phases = report["phases"].as_array().unwrap().iter();
    phases.any(|phase| phase["name"] == "prove")
}

/// Containers that a proof has made.
fn of_proofs() -> Vec<String> {
    let output = podman(&["ps", "--all", "--format", "{{.Names}}", "--filter", "name=rekindle-proof-"]);
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

#[test]
fn an_image_of_a_container_is_proven_beside_it() {
    let Some(base) = Base::new() else { return };
    let mut rekindle = Rekindle::new();
    let served = Served::start(&base, "proven");
    let words = |to| ["checkpoint", "--container", &served.name, "--to", to, "--prove"];
    let checkpoint = |to, after| [&words(to)[..], &[after]].concat();

    let report = rekindle.json(&checkpoint("one", "--leave-running"));
    assert!(has_proven(&report) && report["warnings"] == serde_json::json!([]), "{report}");
    served.greets();
    assert_eq!(of_proofs(), [""; 0]);

    // What it has open is there when the image is made, and is not when that is proven.
    rekindle.set_fault(Some("frozen:hang"));
    let (opened, aside) = (served.path("opened-file"), served.path("aside"));
    for after in ["--leave-running", "--stop"] {
        let bad = rekindle.command(&checkpoint("bad", after)).stderr(Stdio::piped()).spawn().unwrap();
        rekindle.reached("frozen");
        fs::rename(&opened, &aside).unwrap();
        rekindle.let_go("frozen");
        let error = said(&end_of(bad));
        assert!(
            error.contains("did not come back when it was proven") && error.contains("opened-file"),
            "{error}"
        );
        assert_eq!((rekindle.images(), of_proofs()), (vec!["one".to_string()], Vec::new()));
        served.greets();
        fs::rename(&aside, &opened).unwrap();
        rekindle.set_fault(Some("frozen:hang"));
    }

    // Who restores dies in the middle: its successor removes what is left.
    rekindle.set_fault(Some("proof-complete:kill"));
    assert!(!rekindle.output(&checkpoint("two", "--leave-running")).status.success());
    served.greets();
    rekindle.set_fault(None);
    rekindle.ok(&["ps"]);
    wait("what is left of the proof to go", || of_proofs().is_empty());
    assert_eq!(rekindle.images(), ["one"]);

    let report = rekindle.json(&checkpoint("three", "--stop"));
    assert!(has_proven(&report), "{report}");
    assert!(!is_running(&served.name) && podman(&["rm", &served.name]).status.success());
    rekindle.ok(&["restore", "three"]);
    served.greets();
    rekindle.assert_tidy();
}

/// What a machine cannot do for its containers is not tried.
fn started(base: &Base, name: &str, network: &str) -> Option<String> {
    let name = base.own(&format!("{}-{name}", base.image().trim_start_matches("localhost/")));
    let limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"];
    let words =
        ["--runtime", "runc", "run", "--detach", "--name", &name, "--volume", "/usr:/usr:ro", network];
    let command = [base.image(), "/bin/sh", "-c", COUNT];
    let output = podman(&[&words[..], &limits[..], &command[..]].concat());
    if !output.status.success() {
        eprintln!("skipped, for Podman starts no container with {network} here: {}", said(&output));
        return None;
    }
    wait("the container", || !counted(&name).is_empty());
    Some(name)
}

#[test]
fn ports_that_are_found_on_the_machine_stay_the_container_s() {
    let Some(base) = Base::new() else { return };
    let rekindle = Rekindle::with(&[("REKINDLE_PROVE", "on")]);
    let checkpoint =
        |name: &str| rekindle.json(&["checkpoint", "--container", name, "--to", name, "--leave-running"]);
    if let Some(name) = started(&base, "ports", "--publish=127.0.0.1::80") {
        let ports = || podman(&["port", &name]).stdout;
        let before = ports();
        let report = checkpoint(&name);
        assert!(has_proven(&report) && report["warnings"] == serde_json::json!([]), "{report}");
        assert_eq!((ports(), of_proofs().len()), (before, 0));
        goes_on(&name);
    }
    if let Some(name) = started(&base, "host", "--network=host") {
        let report = checkpoint(&name);
        let warning = report["warnings"][0].as_str().unwrap();
        assert!(warning.contains("not proven") && warning.contains("the machine's network"), "{warning}");
        goes_on(&name);
    }
    rekindle.assert_tidy();
}
