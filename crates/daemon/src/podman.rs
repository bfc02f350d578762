//! Podman's containers: what is asked of Podman, which asks the OCI runtime, which asks CRIU.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use rekindle_sandbox::Criu;
use serde::Deserialize;

use crate::error::{Error, Result};

/// What Podman calls a runtime that was built without CRIU, or knows no CRIU.
const NO_SUPPORT: &str = "does not support checkpoint";

/// Of CRIU's errors the first few are told.
const CRIU_ERRORS: usize = 4;

/// Podman, with our CRIU where its runtimes look for one.
pub struct Podman {
    path: OsString,
}

/// What `podman inspect` says of a container, as far as it matters here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Container {
    pub id: String,
    pub name: String,
    #[serde(rename = "OCIRuntime")]
    pub runtime: String,
    #[serde(default)]
    pub path: String,
    #[serde(default)]
    pub args: Vec<String>,
    state: ContainerState,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerState {
    status: String,
    pid: i32,
}

impl Container {
    /// Our pid of its first process.
    pub fn pid(&self) -> Result<i32> {
        if self.state.status == "running" && self.state.pid > 0 {
            return Ok(self.state.pid);
        }
        Err(Error::ContainerNotRunning { name: self.name.clone(), found: self.state.status.clone() })
    }

    pub fn command(&self) -> Vec<String> {
        [self.path.clone()].into_iter().chain(self.args.iter().cloned()).collect()
    }
}

impl Podman {
    pub fn with(criu: &Criu) -> Podman {
        let directory = match criu.path() {
            path if path.is_dir() => Some(path),
            path => path.parent(),
        };
        let mut path = directory.map(OsString::from).unwrap_or_default();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path.push(":/usr/sbin:/sbin");
        Podman { path }
    }

    pub fn inspect(&self, name: &str) -> Result<Container> {
        let text = self.run("look at the container", &["inspect", "--type", "container", "--", name])?;
        let mut found: Vec<Container> = serde_json::from_str(&text).map_err(|error| Error::Podman {
            action: "look at the container",
            reason: format!("it describes {name} in a way that is not understood: {error}"),
        })?;
        found.pop().ok_or_else(|| Error::Podman {
            action: "look at the container",
            reason: format!("there is no container {name}"),
        })
    }

    pub fn has(&self, name: &str) -> Result<bool> {
        let status = self.command(&["container", "exists", name]).status();
        status.map(|status| status.success()).map_err(|error| Error::Podman {
            action: "look for the container",
            reason: format!("it does not start: {error}"),
        })
    }

    /// Has the container's processes written to an archive, with its writable layer and all that a restore needs. CRIU
    /// gives up where the kernel's freezer does not bring all to a stand within 10 s, which happens once and not again:
    /// a container that still runs is tried a second time.
    pub fn export(&self, id: &str, archive: &Path, leave_running: bool) -> Result<()> {
        let archive = archive.to_string_lossy();
        let mut words = vec!["container", "checkpoint", "--compress", "none", "--export", &archive];
        if leave_running {
            words.push("--leave-running");
        }
        words.push(id);
        let Err(error) = self.run("checkpoint the container", &words) else { return Ok(()) };
        if self.inspect(id).and_then(|container| container.pid()).is_err() {
            return Err(error);
        }
        log::warn!("{error}; it runs, and is tried once more");
        self.run("checkpoint the container", &words).map(drop)
    }

    /// Continues a container that was checkpointed and stopped, where it is.
    pub fn resume(&self, id: &str) -> Result<()> {
        self.run("let the container go on", &["container", "restore", id]).map(drop)
    }

    /// Makes a container of an archive and continues its processes.
    pub fn import(&self, archive: &Path, name: &str, runtime: &str) -> Result<()> {
        let archive = archive.to_string_lossy();
        let words = ["--runtime", runtime, "container", "restore", "--import", &archive, "--name", name];
        self.run("restore the container", &words).map(drop)
    }

    pub fn remove(&self, name: &str) {
        if let Err(error) = self.run("remove the container", &["rm", "--force", "--time", "0", "--", name]) {
            log::warn!("{error}");
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(words).env("PATH", &self.path).current_dir("/").stdin(Stdio::null());
        command
    }

    fn run(&self, action: &'static str, words: &[&str]) -> Result<String> {
        let output = self.command(words).output().map_err(|error| Error::Podman {
            action,
            reason: format!("it does not start ({error}); install it (Debian: podman, runc)"),
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("Error: ");
        let mut reason = said.lines().map(str::trim).collect::<Vec<_>>().join("; ");
        if let Some(words) = criu_words(said) {
            reason = words;
        }
        if reason.contains(NO_SUPPORT) {
            reason.push_str(
                "; start it with a runtime that has CRIU (`podman --runtime runc run`, Debian: runc)",
            );
        }
        Err(Error::Podman { action, reason })
    }
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
    use super::*;

    #[test]
    fn what_podman_says_is_understood() {
        let said = r#"[{"Id":"ab","Name":"web","OCIRuntime":"runc","Path":"/bin/sh","Args":["-c","x"],
            "State":{"Status":"running","Running":true,"Pid":7},"Mounts":[]}]"#;
        let mut found: Vec<Container> = serde_json::from_str(said).unwrap();
        let mut container = found.pop().unwrap();
        assert_eq!((container.pid().unwrap(), container.runtime.as_str()), (7, "runc"));
        assert_eq!(container.command(), ["/bin/sh", "-c", "x"]);
        let log = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(log.path(), "(0.1) Error (a.c:1): first\nplain\n(0.2) Error (b.c:2): second\n")
            .unwrap();
        let said = format!("level=error msg=\"criu failed\\nlog file: {}\"", log.path().display());
        let words = criu_words(&said).unwrap();
        assert!(words.contains("first; (0.2)") && !words.contains("plain"), "{words}");
        assert_eq!(criu_words("nothing"), None);
        container.state.status = "exited".to_string();
        assert!(container.pid().unwrap_err().to_string().contains("exited"));
    }
}
