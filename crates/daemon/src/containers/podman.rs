//! Podman's containers: what is asked of Podman, which asks the OCI runtime, which asks CRIU.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use rekindle_sandbox::Criu;
use serde::Deserialize;
use serde_json::Value;

use super::archive;
use super::engine::{Container, Engine, Exported, one_line, run, search_path};
use crate::containers::ContainerError;
use crate::error::{Error, Result};
use crate::images::metadata::ContainerMetadata;

/// What Podman calls a runtime that was built without CRIU, or knows no CRIU.
const NO_SUPPORT: &str = "does not support checkpoint";
/// Of CRIU's errors the first few are told.
const CRIU_ERRORS: usize = 4;
/// Podman's own description of the container, and the runtime's, in an archive.
const CONFIG: &str = "config.dump";
const SPEC: &str = "spec.dump";

/// Podman, with our CRIU where its runtimes look for one.
pub struct Podman {
    path: OsString,
}

/// How a container is made of an archive.
pub enum Manner {
    /// As the one that it was.
    Itself,
    /// Beside the one that it is an image of: with addresses of its own, and the volumes that are there.
    DetachedImages {
        /// Whether its ports are to be found on the machine.
        publishes: bool,
    },
}

impl Manner {
    fn words(&self) -> &'static [&'static str] {
        const BESIDE: [&str; 5] = [
            "--ignore-volumes",
            "--ignore-static-ip",
            "--ignore-static-mac",
            // A port of the machine's that is free, in place of all that it had.
            "--publish",
            "127.0.0.1::1",
        ];
        match self {
            Manner::Itself => &[],
            Manner::DetachedImages { publishes: true } => &BESIDE,
            Manner::DetachedImages { publishes: false } => &BESIDE[..3],
        }
    }
}

/// What `podman inspect` says of a container, as far as it matters here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    name: String,
    #[serde(rename = "OCIRuntime")]
    runtime: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    args: Vec<String>,
    state: State,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    status: String,
    pid: i32,
}

impl From<Inspected> for Container {
    fn from(of: Inspected) -> Container {
        Container {
            id: of.id,
            name: of.name,
            namespace: None,
            runtime: of.runtime,
            command: [of.path].into_iter().chain(of.args).collect(),
            status: of.state.status,
            pid: of.state.pid,
            mounts: Vec::new(),
        }
    }
}

impl Podman {
    pub const NAME: &str = "podman";
    pub const PROGRAM: &str = "podman";

    pub fn with(criu: &Criu) -> Podman {
        Podman { path: search_path(criu) }
    }

    /// With another CRIU's directory before ours.
    pub fn through(criu: &Criu, directory: &Path) -> Podman {
        let mut path = directory.as_os_str().to_owned();
        path.push(":");
        path.push(search_path(criu));
        Podman { path }
    }

    /// Ends a container at once.
    pub fn stop(&self, container: &Container) -> Result<()> {
        self.run("end the container", &["stop", "--time", "0", &container.id]).map(drop)
    }

    /// Has the container's processes written by the CRIU that it finds, and an archive made with the writable layer and all
    /// that a restore needs. The container goes on.
    pub fn export(&self, container: &Container, archive: &Path) -> Result<Exported> {
        let action = "checkpoint the container";
        let place = archive.to_string_lossy();
        let words = ["container", "checkpoint", "--compress", "none", "--leave-running", "--export", &place];
        self.run(action, &[&words[..], &[&container.id]].concat())?;
        let members = archive::read(archive, &[CONFIG, SPEC])
            .map_err(|error| Self::failed(action, format!("its archive cannot be read: {error}")))?;
        let described = |name: &str| {
            let bytes = members.get(name).map(Vec::as_slice).unwrap_or_default();
            serde_json::from_slice(bytes).map_err(|error| {
                Self::failed(action, format!("{name} in its archive is not understood: {error}"))
            })
        };
        Ok(Exported {
            devices: devices(&described(CONFIG)?),
            mounts: mounts(&described(SPEC)?, &container.id),
            reference: None,
        })
    }

    /// Whether the container runs.
    pub fn runs(&self, container: &Container) -> bool {
        let found = self.find(&container.id).unwrap_or_default();
        found.into_iter().any(|found| found.running().is_ok())
    }

    /// Whether the container of an archive has ports that are found on the machine.
    pub fn publishes(archive: &Path) -> Result<bool> {
        let failed = |error: std::io::Error| {
            Self::failed("look for the container's ports", format!("its archive cannot be read: {error}"))
        };
        let members = archive::read(archive, &[CONFIG]).map_err(failed)?;
        let config: Value = members
            .get(CONFIG)
            .and_then(|bytes| serde_json::from_slice(bytes).ok())
            .ok_or_else(|| failed(std::io::ErrorKind::InvalidData.into()))?;
        Ok(has_ports(&config))
    }

    /// Makes a container of an archive and continues its processes.
    pub fn make(&self, archive: &Path, of: &ContainerMetadata, name: &str, manner: &Manner) -> Result<()> {
        let archive = archive.to_string_lossy();
        let words = ["--runtime", &of.runtime, "container", "restore", "--import", &archive, "--name", name];
        self.run("restore the container", &[&words[..], manner.words()].concat()).map(drop)
    }

    /// Removes a container, whatever it does.
    pub fn discard(&self, name: &str) {
        if let Err(error) = self.run("remove the container", &["rm", "--force", "--time", "0", "--", name]) {
            log::warn!("{error}");
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(Podman::PROGRAM);
        command.args(words).env("PATH", &self.path);
        command
    }

    fn run(&self, action: &'static str, words: &[&str]) -> Result<String> {
        run(Podman::NAME, action, &mut self.command(words), explain)
    }

    fn failed(action: &'static str, reason: String) -> Error {
        ContainerError::Engine { engine: Podman::NAME, action, reason }.into()
    }
}

impl Engine for Podman {
    fn name(&self) -> &'static str {
        Podman::NAME
    }

    fn find(&self, name: &str) -> Result<Vec<Container>> {
        let action = "look for the container";
        let mut exists = self.command(&["container", "exists", "--", name]);
        let status = exists.current_dir("/").stdin(std::process::Stdio::null()).output();
        let status = status.map_err(|error| Self::failed(action, format!("it does not start ({error})")))?;
        match status.status.code() {
            Some(0) => {}
            Some(1) => return Ok(Vec::new()),
            _ => return Err(Self::failed(action, one_line(&String::from_utf8_lossy(&status.stderr)))),
        }
        let text = self.run("look at the container", &["inspect", "--type", "container", "--", name])?;
        let found: Vec<Inspected> = serde_json::from_str(&text).map_err(|error| {
            let reason = format!("it describes {name} in a way that is not understood: {error}");
            Self::failed("look at the container", reason)
        })?;
        Ok(found.into_iter().map(Container::from).collect())
    }

    fn remove(&self, _of: &ContainerMetadata, name: &str) {
        self.discard(name);
    }
}

/// The devices that the container was given by name.
fn devices(config: &Value) -> Vec<String> {
    let names = config["cdiDevices"].as_array().into_iter().flatten();
    names.filter_map(Value::as_str).map(String::from).collect()
}

/// Whether a container's description, by Podman 4 or an earlier one, has ports that are found on the machine.
fn has_ports(config: &Value) -> bool {
    ["newPortMappings", "portMappings"]
        .iter()
        .any(|name| config[name].as_array().is_some_and(|all| !all.is_empty()))
}

/// What of the machine is mounted in the container. Podman makes its own files, which lie below its id, anew.
fn mounts(spec: &Value, id: &str) -> Vec<PathBuf> {
    let all = spec["mounts"].as_array().into_iter().flatten();
    let bound = all.filter(|mount| {
        let mut options = mount["options"].as_array().into_iter().flatten().filter_map(Value::as_str);
        mount["type"] == "bind" || options.any(|option| matches!(option, "bind" | "rbind"))
    });
    let sources = bound.filter_map(|mount| mount["source"].as_str());
    sources.filter(|source| source.starts_with('/') && !source.contains(id)).map(PathBuf::from).collect()
}

fn explain(said: &str) -> String {
    let mut reason = criu_words(said).unwrap_or_else(|| one_line(said.trim_start_matches("Error: ")));
    if reason.contains(NO_SUPPORT) {
        reason
            .push_str("; start it with a runtime that has CRIU (`podman --runtime runc run`, Debian: runc)");
    }
    reason
}

/// What CRIU itself says, in the log that its runtime names: the last of its errors are about letting go.
fn criu_words(said: &str) -> Option<String> {
    let (_, rest) = said.split_once("log file: ")?;
    let path = rest.split(['"', '\n', ' ']).next()?;
    let log = String::from_utf8_lossy(&std::fs::read(path).ok()?).into_owned();
    let errors: Vec<_> = log.lines().filter(|line| line.contains("Error")).take(CRIU_ERRORS).collect();
    (!errors.is_empty()).then(|| format!("CRIU: {} (its log: {path})", errors.join("; ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_podman_says_is_understood() {
        let said = r#"[{"Id":"ab","Name":"web","OCIRuntime":"runc","Path":"/bin/sh","Args":["-c","x"],
            "State":{"Status":"running","Running":true,"Pid":7},"Mounts":[]}]"#;
        let mut found: Vec<Inspected> = serde_json::from_str(said).unwrap();
        let mut container = Container::from(found.pop().unwrap());
        assert_eq!((container.pid, container.runtime.as_str()), (7, "runc"));
        assert_eq!(container.command, ["/bin/sh", "-c", "x"]);
        assert!(container.clone().running().is_ok());
        container.status = "exited".to_string();
        assert!(container.running().unwrap_err().to_string().contains("exited"));
        assert!(explain("Error: crun does not support checkpoint/restore").contains("--runtime runc"));
    }

    #[test]
    fn criu_s_words_come_from_its_log() {
        let log = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(log.path(), "(0.1) Error (a.c:1): first\nplain\n(0.2) Error (b.c:2): second\n")
            .unwrap();
        let said = format!("level=error msg=\"criu failed\\nlog file: {}\"", log.path().display());
        let words = criu_words(&said).unwrap();
        assert!(words.contains("first; (0.2)") && !words.contains("plain"), "{words}");
        assert_eq!(criu_words("nothing"), None);
    }

    #[test]
    fn what_is_not_podman_s_own_is_needed() {
        let spec = json!({ "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/etc/hosts", "type": "bind", "source": "/run/ab12/hosts", "options": ["bind"] },
            { "destination": "/data", "type": "bind", "source": "/data", "options": ["rbind"] },
            { "destination": "/lib/x", "source": "/opt/x", "options": ["ro", "bind"] },
        ] });
        assert_eq!(mounts(&spec, "ab12"), [PathBuf::from("/data"), PathBuf::from("/opt/x")]);
        assert_eq!(devices(&json!({ "cdiDevices": ["v.com/gpu=all"] })), ["v.com/gpu=all"]);
        assert!(devices(&json!({})).is_empty());
        assert!(has_ports(&json!({ "newPortMappings": [{ "container_port": 80, "host_port": 8080 }] })));
        assert!(!has_ports(&json!({ "newPortMappings": [] })) && !has_ports(&json!({})));
    }
}
