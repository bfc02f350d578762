//! The framework program for Python.

use std::fs;
use std::path::Path;

use rekindle_protocol::daemon::Python;

use super::app_socket::DIRECTORY;
use crate::error::{Error, Result};

const SCRIPT: &str = include_str!("python.py");
const NAME: &str = "framework.py";

/// The command, as it is run in the sandbox.
pub fn command(python: &Python) -> Vec<String> {
    let interpreter = python.interpreter.as_deref().unwrap_or("python3");
    let script = format!("{}/{DIRECTORY}/{NAME}", rekindle_sandbox::RUN_PATH);
    let mut command = vec![interpreter.to_string(), script];
    command.extend(python.imports.iter().map(|name| format!("--import={name}")));
    command.extend(python.warm.iter().map(|path| format!("--warm={path}")));
    command.extend(python.no_gpu.then(|| "--no-gpu".to_string()));
    command
}

/// Puts the script where the command has it.
pub fn place(run_directory: &Path) -> Result<()> {
    let path = run_directory.join(DIRECTORY).join(NAME);
    fs::write(&path, SCRIPT).map_err(|source| Error::io("write", &path, source))
}
