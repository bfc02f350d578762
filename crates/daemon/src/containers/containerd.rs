//! containerd's containers, by its own `ctr`: containerd asks its shim, which asks the OCI runtime, which asks CRIU.
//!
//! A checkpoint is an image of containerd's for the time of the export. containerd's runtime finds CRIU by the `PATH`
//! that containerd was started with, not by ours.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rekindle_sandbox::Criu;
use serde_json::Value;

use super::archive;
use super::engine::{Container, Engine, Exported, one_line, run};
use crate::containers::ContainerError;
use crate::error::Result;
use crate::host::process::is_alive;
use crate::images::metadata::ContainerMetadata;

/// What a runtime says that finds no CRIU.
const NO_CRIU: &str = "\"criu\": executable file not found";
/// What a runtime says whose CRIU has given up, and how often it is asked.
const BY_CRIU: &str = "criu failed";
const MOST_TRIES: u32 = 3;
/// Names one of containerd's divisions; without, all are looked through.
const NAMESPACE_VARIABLE: &str = "CONTAINERD_NAMESPACE";
/// Names containerd's socket, if it is not the usual one.
const ADDRESS_VARIABLE: &str = "CONTAINERD_ADDRESS";
const ADDRESS: &str = "/run/containerd/containerd.sock";
/// What an archive must have: memory, description, writable layer.
const NEEDED: [&str; 3] = [
    "application/vnd.containerd.container.criu.checkpoint.criu.tar",
    "application/vnd.containerd.container.checkpoint.config.v1+proto",
    "application/vnd.oci.image.layer.v1.tar+gzip",
];
const CHECKPOINT: &str = "checkpoint the container";
/// How long killed processes may take to be gone.
const END_LIMIT: Duration = Duration::from_secs(10);

pub struct Containerd {
    /// Our CRIU's directory, for advice.
    criu: PathBuf,
}

impl Containerd {
    pub const NAME: &str = "containerd";
    pub const PROGRAM: &str = "ctr";

    pub fn with(criu: &Criu) -> Containerd {
        Containerd { criu: criu.path().to_path_buf() }
    }

    fn run(&self, action: &'static str, namespace: Option<&str>, words: &[&str]) -> Result<String> {
        let mut command = Command::new(Containerd::PROGRAM);
        command.args(namespace.iter().flat_map(|namespace| ["--namespace", namespace])).args(words);
        run(Containerd::NAME, action, &mut command, |said| {
            let mut reason = one_line(said.trim_start_matches("ctr: "));
            if reason.contains(NO_CRIU) {
                let directory = self.criu.display();
                reason = format!("its runtime finds no CRIU; start containerd with {directory} in its PATH");
            }
            reason
        })
    }

    fn of(&self, action: &'static str, container: &Container, words: &[&str]) -> Result<String> {
        self.run(action, container.namespace.as_deref(), words)
    }

    /// `ctr` itself would wait for a long time.
    fn check(&self, action: &'static str) -> Result<()> {
        let address = std::env::var(ADDRESS_VARIABLE).unwrap_or_else(|_| ADDRESS.to_string());
        let reason = |error| format!("it does not answer at {address} ({error})");
        let failed = |reason| ContainerError::Engine { engine: Containerd::NAME, action, reason }.into();
        UnixStream::connect(&address).map(drop).map_err(|error| failed(reason(error)))
    }

    fn namespaces(&self) -> Result<Vec<String>> {
        if let Ok(given) = std::env::var(NAMESPACE_VARIABLE) {
            return Ok(vec![given]);
        }
        let text = self.run("list its namespaces", None, &["namespaces", "ls", "-q"])?;
        Ok(text.lines().map(String::from).collect())
    }

    /// What the archive calls itself.
    fn try_export(&self, container: &Container, archive: &Path, leave_running: bool) -> Result<String> {
        let reference = format!("localhost/rekindle:{}", crate::host::own_name::random()?);
        let id = container.id.as_str();
        let words = ["containers", "checkpoint", "--image", "--task", "--rw", id, &reference];
        self.of(CHECKPOINT, container, &words)?;
        let paused = match leave_running {
            true => Ok(()),
            false => self.of(CHECKPOINT, container, &["tasks", "pause", id]).map(drop),
        };
        let place = archive.to_string_lossy();
        let words = ["images", "export", "--skip-manifest-json", &place, &reference];
        let exported = paused.and_then(|()| self.of(CHECKPOINT, container, &words));
        if let Err(error) =
            self.of("forget its checkpoint", container, &["images", "rm", "--sync", &reference])
        {
            log::warn!("{error}");
        }
        if let Err(error) = exported {
            if !leave_running && let Err(second) = self.go_on(container) {
                log::error!("{second}");
            }
            return Err(error);
        }
        Ok(reference)
    }

    /// CRIU gives up where the kernel's freezer does not bring all to a stand within 10 s: a process that waits for its
    /// child to begin another program is caught with it now and then, and not again.
    fn export_running(&self, container: &Container, archive: &Path, leave_running: bool) -> Result<String> {
        let mut tries = 1;
        loop {
            match self.try_export(container, archive, leave_running) {
                Err(error)
                    if tries < MOST_TRIES
                        && error.to_string().contains(BY_CRIU)
                        && is_alive(container.pid) =>
                {
                    log::warn!("{error}; it runs, and is tried once more");
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    /// containerd lets the container go on by itself; one that is to end is paused right behind that. What an archive
    /// must have is looked for in it: `ctr` leaves out, and says nothing, where containerd has an equal part already. So
    /// its checkpoints are removed at once, with all that they had.
    pub fn export(&self, container: &Container, archive: &Path, leave_running: bool) -> Result<Exported> {
        let mut reference = self.export_running(container, archive, leave_running)?;
        if let Err(lack) = check_archive(archive) {
            log::warn!("containerd's archive of {} has no {lack}; it is made once more", container.name);
            if !leave_running {
                self.go_on(container)?;
            }
            reference = self.export_running(container, archive, leave_running)?;
            if let Err(lack) = check_archive(archive) {
                if !leave_running {
                    self.go_on(container)?;
                }
                return Err(ContainerError::Engine {
                    engine: Containerd::NAME,
                    action: CHECKPOINT,
                    reason: format!(
                        "what it has exported has no {lack}, as happens where it has an equal part of another checkpoint; remove that (`ctr images ls`)"
                    ),
                }.into());
            }
        }
        Ok(Exported { devices: Vec::new(), mounts: container.mounts.clone(), reference: Some(reference) })
    }

    /// Lets a container go on that an export has brought to a stand.
    pub fn go_on(&self, container: &Container) -> Result<()> {
        self.of("let the container go on", container, &["tasks", "resume", &container.id]).map(drop)
    }

    /// Ends a container that an export has brought to a stand, once its image is safe.
    pub fn end(&self, container: &Container) -> Result<()> {
        let action = "end the container";
        let (id, namespace) = (container.id.as_str(), container.namespace.as_deref().unwrap_or_default());
        self.of(action, container, &["tasks", "kill", "--signal", "SIGKILL", id])?;
        let began = Instant::now();
        loop {
            match self.task(namespace, id)?.1.as_str() {
                "stopped" => break,
                // Some runtimes thaw a paused one for that; with others it dies of it when it goes on.
                "paused" => drop(self.go_on(container)),
                _ => {}
            }
            if began.elapsed() > END_LIMIT {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Its exit code, 137, is told as a failure.
        let removed = self.of(action, container, &["tasks", "rm", id]);
        match self.task(namespace, id)?.0 {
            0 => Ok(()),
            _ => removed.map(drop),
        }
    }

    /// Makes a container of an archive and continues its processes.
    pub fn import(&self, archive: &Path, of: &ContainerMetadata, name: &str) -> Result<()> {
        // Two restores of one image share its name in containerd while they go on.
        static LOCK: Mutex<()> = Mutex::new(());
        let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let action = "restore the container";
        let namespace = of.namespace.as_deref();
        let reference = of.reference.as_deref().unwrap_or_default();
        let archive = archive.to_string_lossy();
        self.run(action, namespace, &["images", "import", "--no-unpack", &archive])?;
        let words = ["containers", "restore", "--rw", "--live", name, reference];
        let restored = self.run(action, namespace, &words);
        if let Err(error) =
            self.run("forget the checkpoint", namespace, &["images", "rm", "--sync", reference])
        {
            log::warn!("{error}");
        }
        restored.map(drop).inspect_err(|_| self.remove(of, name))
    }

    fn task(&self, namespace: &str, id: &str) -> Result<(i32, String)> {
        let text = self.run("look at the container", Some(namespace), &["tasks", "ls"])?;
        Ok(task_of(&text, id))
    }
}

impl Engine for Containerd {
    fn name(&self) -> &'static str {
        Containerd::NAME
    }

    fn find(&self, name: &str) -> Result<Vec<Container>> {
        let action = "look for the container";
        self.check(action)?;
        let mut found = Vec::new();
        for namespace in self.namespaces()? {
            let all = self.run(action, Some(&namespace), &["containers", "ls", "-q"])?;
            if !all.lines().any(|id| id == name) {
                continue;
            }
            let text = self.run(action, Some(&namespace), &["containers", "info", name])?;
            let (pid, status) = self.task(&namespace, name)?;
            let described: Value = serde_json::from_str(&text).map_err(|error| ContainerError::Engine {
                engine: Containerd::NAME,
                action,
                reason: format!("it describes {name} in a way that is not understood: {error}"),
            })?;
            let words = described["Spec"]["process"]["args"].as_array().into_iter().flatten();
            found.push(Container {
                id: name.to_string(),
                name: name.to_string(),
                runtime: described["Runtime"]["Name"].as_str().unwrap_or_default().to_string(),
                command: words.filter_map(Value::as_str).map(String::from).collect(),
                status,
                pid,
                mounts: bound(&described["Spec"]["mounts"]),
                namespace: Some(namespace),
            });
        }
        Ok(found)
    }

    fn remove(&self, of: &ContainerMetadata, name: &str) {
        let namespace = of.namespace.as_deref();
        // There may be no more than a part of it.
        let _ = self.run("remove the container", namespace, &["tasks", "rm", "--force", name]);
        if let Err(error) = self.run("remove the container", namespace, &["containers", "rm", name]) {
            log::warn!("{error}");
        }
    }
}

/// What is missing of an archive that is to be restored: memory, description or writable layer.
fn check_archive(archive: &Path) -> std::result::Result<(), String> {
    let blob = |digest: &str| format!("blobs/{}", digest.replace(':', "/"));
    let parsed = |name: &str| -> Option<Value> {
        let mut found = archive::read(archive, &[name]).ok()?;
        serde_json::from_slice(&found.remove(name)?).ok()
    };
    let top = parsed("index.json").ok_or("index.json")?;
    let name = top["manifests"][0]["digest"].as_str().map(blob).ok_or("checkpoint")?;
    let index = parsed(&name).ok_or_else(|| name.clone())?;
    let kinds: Vec<_> = index["manifests"].as_array().into_iter().flatten().collect();
    let lacks = |kind: &&&str| !kinds.iter().any(|part| part["mediaType"] == **kind);
    NEEDED.iter().find(lacks).map_or(Ok(()), |kind| Err(kind.to_string()))
}

/// The pid and status of a container's task, from a table of all.
fn task_of(table: &str, id: &str) -> (i32, String) {
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.filter_map(|row| <[&str; 3]>::try_from(row).ok()).find(|row| row[0] == id);
    row.map_or_else(
        || (0, "stopped".to_string()),
        |[_, pid, status]| (pid.parse().unwrap_or(0), status.to_lowercase()),
    )
}

/// What of the machine is mounted.
fn bound(mounts: &Value) -> Vec<PathBuf> {
    let bound = mounts.as_array().into_iter().flatten().filter(|mount| mount["type"] == "bind");
    bound.filter_map(|mount| mount["source"].as_str()).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_found_in_the_table() {
        let table = "TASK    PID     STATUS    \nweb     3101    RUNNING\nold     0       STOPPED\n";
        assert_eq!(task_of(table, "web"), (3101, "running".to_string()));
        assert_eq!(task_of(table, "old"), (0, "stopped".to_string()));
        assert_eq!(task_of(table, "none"), (0, "stopped".to_string()));
    }
}
