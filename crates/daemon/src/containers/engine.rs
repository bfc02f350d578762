//! Who runs containers here, and which of them has the one that is asked for.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rekindle_sandbox::Criu;

use super::containerd::Containerd;
use super::podman::Podman;
use crate::containers::ContainerError;
use crate::error::Result;
use crate::images::metadata::ContainerMetadata;

/// A container as its engine describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    pub id: String,
    pub name: String,
    /// The engine's own division of names, if it has such.
    pub namespace: Option<String>,
    pub runtime: String,
    pub command: Vec<String>,
    pub status: String,
    /// Our pid of its first process; 0 if it has none.
    pub pid: i32,
    /// Of the machine, what is mounted in it.
    pub mounts: Vec<PathBuf>,
}

/// What a restore needs beside the archive, as far as only the export tells.
#[derive(Debug, Default, PartialEq)]
pub struct Exported {
    /// Its devices by their names in the container device interface.
    pub devices: Vec<String>,
    pub mounts: Vec<PathBuf>,
    /// What the archive calls itself.
    pub reference: Option<String>,
}

/// What runs containers. Names are passed on as they are: no shell reads them, and none is taken for an option.
pub trait Engine {
    fn name(&self) -> &'static str;

    /// All containers of that name or id.
    fn find(&self, name: &str) -> Result<Vec<Container>>;

    /// Removes what a restore has made.
    fn remove(&self, of: &ContainerMetadata, name: &str);
}

/// The engine of that name.
pub fn named(criu: &Criu, name: &str) -> Option<Box<dyn Engine>> {
    match name {
        Podman::NAME => Some(Box::new(Podman::with(criu))),
        Containerd::NAME => Some(Box::new(Containerd::with(criu))),
        _ => None,
    }
}

/// The engines that are installed, or the one that is wanted.
fn here(criu: &Criu, wanted: Option<&str>) -> Result<Vec<Box<dyn Engine>>> {
    let programs = [(Podman::NAME, Podman::PROGRAM), (Containerd::NAME, Containerd::PROGRAM)];
    let known = programs.iter().filter(|(name, _)| wanted.is_none_or(|wanted| wanted == *name));
    let installed = known.filter(|(_, program)| is_installed(program));
    let found: Vec<_> = installed.filter_map(|(name, _)| named(criu, name)).collect();
    match found.is_empty() {
        true => {
            Err(ContainerError::NoEngine { wanted: wanted.unwrap_or("podman or containerd").to_string() }
                .into())
        }
        false => Ok(found),
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// The container of that name, and who runs it.
pub fn find(criu: &Criu, name: &str, wanted: Option<&str>) -> Result<(Box<dyn Engine>, Container)> {
    let (mut found, mut asked) = (Vec::new(), Vec::new());
    for engine in here(criu, wanted)? {
        match engine.find(name) {
            Ok(containers) => {
                asked.push(engine.name().to_string());
                found.extend(containers.into_iter().map(|container| (engine.name(), container)));
            }
            Err(error) => asked.push(format!("({error})")),
        }
    }
    let unknown = || ContainerError::Unknown { name: name.to_string(), asked: asked.join(", ") };
    if found.len() > 1 {
        let place = |(engine, container): &(&str, Container)| match &container.namespace {
            Some(namespace) => format!("{engine} in its namespace {namespace}"),
            None => engine.to_string(),
        };
        let places = found.iter().map(place).collect::<Vec<_>>().join(", ");
        return Err(ContainerError::Several { name: name.to_string(), places }.into());
    }
    let (engine, container) = found.pop().ok_or_else(unknown)?;
    Ok((named(criu, engine).ok_or_else(unknown)?, container))
}

/// The container, which must run.
pub fn running(engine: &dyn Engine, namespace: Option<&str>, name: &str) -> Result<Container> {
    let found = engine.find(name)?.into_iter();
    let mut found = found.filter(|container| container.namespace.as_deref() == namespace);
    let unknown = || ContainerError::Unknown { name: name.to_string(), asked: engine.name().to_string() };
    found.next().ok_or_else(unknown)?.running()
}

impl Container {
    pub fn running(self) -> Result<Container> {
        if self.status == "running" && self.pid > 0 {
            return Ok(self);
        }
        Err(ContainerError::NotRunning { name: self.name, found: self.status }.into())
    }
}

/// Runs an engine's program and gives what it has printed.
pub fn run(
    engine: &'static str,
    action: &'static str,
    command: &mut Command,
    explain: impl FnOnce(&str) -> String,
) -> Result<String> {
    let failed = |reason: String| ContainerError::Engine { engine, action, reason }.into();
    let output: Output = command
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(format!("it does not start ({error})")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(explain(String::from_utf8_lossy(&output.stderr).trim())))
}

/// What was said, as one line.
pub fn one_line(said: &str) -> String {
    said.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// Where an engine's runtime is to look for programs: our CRIU first.
pub fn search_path(criu: &Criu) -> std::ffi::OsString {
    let directory = match criu.path() {
        path if path.is_dir() => Some(path),
        path => path.parent(),
    };
    let mut path = directory.map(std::ffi::OsString::from).unwrap_or_default();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path.push(":/usr/sbin:/sbin");
    path
}
