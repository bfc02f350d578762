//! Finding a CRIU that is new enough, on the system or in a private directory that `scripts/criu` made.
//!
//! A private directory holds `criu.bin` and its libraries in `lib`, its loader among them; it is run through
//! that loader, so that it needs nothing of the system's.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

pub const MINIMUM_VERSION: Version = Version { major: 4, minor: 1 };
const LOADER: &str = "lib/ld-linux-x86-64.so.2";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// From what `criu --version` prints.
    fn parse(text: &str) -> Option<Self> {
        let number = text.lines().find_map(|line| line.strip_prefix("Version:"))?.trim();
        let mut parts = number.split(|c: char| !c.is_ascii_digit());
        Some(Self { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
    }
}

/// A CRIU that runs here and is new enough.
#[derive(Debug, Clone)]
pub struct Criu {
    command: Vec<OsString>,
    path: PathBuf,
    version: Version,
}

impl Criu {
    /// The first usable of `dirs` and `$REKINDLE_CRIU_DIR`. Else the newest of: that of an installation
    /// (`../lib/rekindle/criu` beside this executable), `.build/criu` above it, the system's.
    pub fn find(dirs: &[PathBuf]) -> Result<Self> {
        let named = dirs.iter().cloned().chain(std::env::var_os("REKINDLE_CRIU_DIR").map(PathBuf::from));
        let mut tried = Vec::new();
        let mut usable = |candidate: PathBuf| {
            let command = command(&candidate)?;
            match probe(&command) {
                Ok(version) if version >= MINIMUM_VERSION => {
                    return Some(Self { command, path: candidate, version });
                }
                Ok(version) => tried.push(format!("{} is {version}", candidate.display())),
                Err(cause) => tried.push(format!("{}: {cause}", candidate.display())),
            }
            None
        };
        if let Some(found) = named.into_iter().find_map(&mut usable) {
            return Ok(found);
        }
        // Of one version, the first that is listed: `max_by_key` takes the last.
        if let Some(found) = candidates().into_iter().rev().filter_map(usable).max_by_key(Self::version) {
            return Ok(found);
        }
        let tried = if tried.is_empty() { "none was found".into() } else { tried.join(", ") };
        Err(Error::NoCriu { tried, required: MINIMUM_VERSION.to_string() })
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// The program, or the private directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets CRIU check this kernel and our capabilities.
    pub fn check(&self) -> Result<()> {
        let output = run(&self.command, "check").map_err(|cause| Error::CriuCheck { cause })?;
        if output.status.success() {
            return Ok(());
        }
        let text =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        let errors: Vec<_> = text.lines().filter(|line| line.contains("Error")).map(str::trim).collect();
        let cause = if errors.is_empty() { text.trim().to_owned() } else { errors.join("; ") };
        Err(Error::CriuCheck { cause })
    }

    /// The same CRIU with the plugins of a directory.
    pub(crate) fn with_plugins(&self, directory: &Path) -> Self {
        let mut variable = OsString::from("CRIU_LIBS_DIR=");
        variable.push(directory);
        let command = ["/usr/bin/env".into(), variable].into_iter().chain(self.command.iter().cloned());
        Self { command: command.collect(), ..self.clone() }
    }

    pub(crate) fn command(&self) -> &[OsString] {
        &self.command
    }
}

fn candidates() -> Vec<PathBuf> {
    let mut out = Vec::new();
    if let Ok(program) = std::env::current_exe() {
        out.extend(program.parent().map(|dir| dir.join("../lib/rekindle/criu")));
        out.extend(program.ancestors().skip(1).map(|dir| dir.join(".build/criu")));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    out.extend(system.map(|dir: PathBuf| dir.join("criu")).find(|program| program.is_file()));
    out
}

fn command(candidate: &Path) -> Option<Vec<OsString>> {
    if candidate.is_file() {
        return Some(vec![candidate.into()]);
    }
    let (loader, program) = (candidate.join(LOADER), candidate.join("criu.bin"));
    (loader.is_file() && program.is_file()).then(|| {
        let library_path = candidate.join("lib").into();
        vec![loader.into(), "--inhibit-cache".into(), "--library-path".into(), library_path, program.into()]
    })
}

fn run(command: &[OsString], action: &str) -> Result<std::process::Output, String> {
    Command::new(&command[0])
        .args(&command[1..])
        .arg(action)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("it does not start: {error}"))
}

fn probe(command: &[OsString]) -> Result<Version, String> {
    let output = run(command, "--version")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Version::parse(&text).ok_or_else(|| format!("it does not tell its version but: {:?}", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        assert_eq!(Version::parse("Version: 4.1.1\n"), Some(Version { major: 4, minor: 1 }));
        assert_eq!(Version::parse("Version: 4.2\nGitID: v4.2"), Some(Version { major: 4, minor: 2 }));
        assert_eq!(Version::parse("criu"), None);
        assert!(Version { major: 3, minor: 17 } < MINIMUM_VERSION);
        assert!(Version { major: 10, minor: 0 } > MINIMUM_VERSION);
    }

    #[test]
    fn a_directory_without_criu_is_no_candidate() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(command(dir.path()), None);
    }
}
