//! GPUs for containers: a run directory with its admission socket, which an engine puts into one container by a name of the
//! container device interface. The container's program finds the client there, and is served as one in a sandbox.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rekindle_protocol::client::RUN_DIRECTORY;
use rekindle_protocol::daemon::{Mode, State};
use rekindle_sandbox::{Exit, RUN_PATH};
use serde_json::{Value, json};

use super::cdi;
use crate::containers::ContainerError;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::client_library::{self, Build};
use crate::host::gpu;
use crate::host::process::is_alive;
use crate::host::replace::{Outlasting, PUBLIC, replace};
use crate::images::metadata::DeviceMetadata;
use crate::lifecycle::run::create;
use crate::sandboxes::Sandbox;
use crate::sandboxes::admission::AdmissionSocket;
use crate::sandboxes::record::Record;
use crate::sleep::wake;

/// What all these devices are called.
const KIND: &str = "rekindle.dev/gpu";

/// The full name of a device.
pub fn full_name(name: &str) -> String {
    format!("{KIND}={name}")
}

/// Whether a name is that of one of these devices.
pub fn is_one(name: &str) -> bool {
    name.strip_prefix(KIND).is_some_and(|rest| rest.starts_with('='))
}

/// Makes a device, which is there until it is removed.
pub fn make(daemon: &Daemon, name: &str, gpu: Option<&str>) -> Result<Value> {
    let gpu = gpu::choose(Some(gpu.unwrap_or("emulated")))?;
    let sandbox = add(daemon, name, daemon.paths.new_id()?, &gpu)?;
    Ok(json!({ "name": sandbox.name(), "device": full_name(name), "description": description(&sandbox.id) }))
}

fn add(daemon: &Daemon, name: &str, id: String, gpu: &str) -> Result<Arc<Sandbox>> {
    if !gpu.starts_with("emulated") {
        return Err(ContainerError::RealGpu { gpu: gpu.to_string() }.into());
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(plain) {
        return Err(ContainerError::BadDeviceName { shown: name.chars().take(40).collect() }.into());
    }
    let sandbox = daemon.sandboxes.add(Some(name), "", |at| {
        let record = Record {
            device: true,
            ..Record::new(id, at.name, Mode::Sandbox, State::Running, gpu.to_string())
        };
        create(daemon, record, None, None)
    })?;
    if let Err(error) = AdmissionSocket::open(&sandbox, wake::knocked)
        .and_then(|()| describe(&sandbox))
        .and_then(|()| sandbox.is_up())
    {
        remove(daemon, &sandbox);
        return Err(error);
    }
    Ok(sandbox)
}

/// Takes the device back. A program that uses it gets errors from its calls from then on.
pub fn remove(daemon: &Daemon, sandbox: &Arc<Sandbox>) {
    let _ = fs::remove_file(description(&sandbox.id));
    sandbox.ended(Some(Exit::Stopped));
    daemon.sandboxes.remove(sandbox);
}

/// Takes over a device of an earlier daemon.
pub fn adopt(daemon: &Daemon, sandbox: &Arc<Sandbox>) -> Result<()> {
    if !sandbox.run_directory.is_dir() {
        // The machine was started anew.
        let build = Build::installed(&daemon.paths, &daemon.program)?;
        crate::host::paths::private_directory(&sandbox.run_directory, true)?;
        build.put_into(&sandbox.run_directory)?;
        sandbox.claim()?;
    }
    sandbox.reconnect_workers();
    if sandbox.record().state == State::Restoring {
        sandbox.live_workers().iter().for_each(|worker| sandbox.end_worker(worker));
        sandbox.report_problem("the daemon died while a container was being restored onto this".to_string());
    }
    wake::settle(daemon, sandbox);
    AdmissionSocket::open(sandbox, wake::knocked)?;
    describe(sandbox)?;
    sandbox.is_up()
}

/// The device whose run directory a process sees, if it sees one.
pub fn of(daemon: &Daemon, pid: i32) -> Option<Arc<Sandbox>> {
    let inside = Path::new("/proc").join(pid.to_string()).join("root").join(RUN_PATH.trim_start_matches('/'));
    let seen = fs::metadata(inside).ok()?;
    let is_seen = |sandbox: &Arc<Sandbox>| {
        fs::metadata(&sandbox.run_directory)
            .is_ok_and(|own| (own.dev(), own.ino()) == (seen.dev(), seen.ino()))
    };
    daemon
        .sandboxes
        .all()
        .into_iter()
        .filter(|sandbox| sandbox.is_live() && sandbox.record().device)
        .find(is_seen)
}

pub fn keep(sandbox: &Sandbox) -> DeviceMetadata {
    DeviceMetadata {
        name: sandbox.name(),
        id: sandbox.id.clone(),
        run_directory: sandbox.run_directory.clone(),
    }
}

/// The device that a restore needs: the one that is there, which nobody may use, or a new one in its place.
pub fn bring_back(
    daemon: &Daemon,
    metadata: &DeviceMetadata,
    gpu: &str,
) -> std::result::Result<Arc<Sandbox>, String> {
    if daemon.paths.run_directories().join(&metadata.id) != metadata.run_directory {
        let place = metadata.run_directory.display();
        return Err(format!(
            "its container finds its GPU at {place}; give the daemon the --run-dir that this is in"
        ));
    }
    let known =
        daemon.sandboxes.all().into_iter().find(|sandbox| sandbox.is_live() && sandbox.id == metadata.id);
    let Some(sandbox) = known else {
        return add(daemon, &metadata.name, metadata.id.clone(), gpu).map_err(|error| error.to_string());
    };
    match sandbox.live_workers().iter().find(|worker| is_alive(worker.client())) {
        Some(worker) => Err(format!(
            "its device {:?} is used by process {}, and one container has it at a time; end that one first",
            metadata.name,
            worker.client()
        )),
        None => Ok(sandbox),
    }
}

fn description(id: &str) -> PathBuf {
    Path::new(cdi::DIRECTORIES[1]).join(format!("rekindle-{id}.json"))
}

/// Tells engines what a container gets with the device.
fn describe(sandbox: &Sandbox) -> Result<()> {
    let directory = Path::new(cdi::DIRECTORIES[1]);
    fs::create_dir_all(directory).map_err(|source| Error::io("make directory", directory, source))?;
    let libraries = format!("{RUN_PATH}/{}", client_library::DIRECTORY);
    let variables = [format!("{RUN_DIRECTORY}={RUN_PATH}"), format!("LD_LIBRARY_PATH={libraries}")];
    let mount = json!({
        "hostPath": sandbox.run_directory,
        "containerPath": RUN_PATH,
        "options": ["bind", "rw", "nosuid", "nodev"],
    });
    let edits = json!({ "env": variables, "mounts": [mount] });
    let devices = json!([{ "name": sandbox.name(), "containerEdits": edits }]);
    let text = json!({ "cdiVersion": "0.3.0", "kind": KIND, "devices": devices }).to_string();
    let place = description(&sandbox.id);
    replace(&place, text.as_bytes(), PUBLIC, Outlasting::Nothing)
        .map_err(|source| Error::io("write", &place, source))
}
