//! The framework program for Python.

use std::fs;
use std::path::Path;

use super::door::DIRECTORY;
use crate::error::{Error, Result};

const SCRIPT: &str = include_str!("python.py");
const NAME: &str = "framework.py";

/// What the program is to get ready.
#[derive(Debug, Default)]
pub struct Python {
    pub interpreter: Option<String>,
    /// Modules to import; those that most use, if there are none.
    pub imports: Vec<String>,
    /// A script to run after that.
    pub warm: Option<String>,
}

impl Python {
    /// The command, as it is run in the sandbox.
    pub fn command(&self) -> Vec<String> {
        let interpreter = self.interpreter.as_deref().unwrap_or("python3");
        let script = format!("{}/{DIRECTORY}/{NAME}", rekindle_sandbox::RUN_PATH);
        let mut command = vec![interpreter.to_string(), script];
        command.extend(self.imports.iter().map(|name| format!("--import={name}")));
        command.extend(self.warm.iter().map(|path| format!("--warm={path}")));
        command
    }
}

/// Puts the script where the command has it.
pub fn place(run_directory: &Path) -> Result<()> {
    let path = run_directory.join(DIRECTORY).join(NAME);
    fs::write(&path, SCRIPT).map_err(|source| Error::io("write", &path, source))
}
