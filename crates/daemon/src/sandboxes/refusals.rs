//! Which functions of the driver programs were refused in sandboxes, and what is remembered of that.
//!
//! ```text
//!   client ── name ─▶ run directory/refused ── at its end ─▶ record, and refusals.json by program
//! ```
//!
//! The file in the run directory is the program's to write, so only words that look like the names of functions are taken from
//! it. What is remembered is bounded: of the last programs, some names each.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rekindle_protocol::client::REFUSED;
use rekindle_store::bounded;
use serde::{Deserialize, Serialize};

use crate::host::replace::{Outlasting, PRIVATE, replace};

/// How much of the file is read, and how many names are kept of it.
const LONGEST: u64 = 16 << 10;
const MOST_NAMES: usize = 32;
const LONGEST_NAME: usize = 64;
/// How many programs are remembered.
const MOST_PROGRAMS: usize = 256;
const LONGEST_MEMORY: u64 = 4 << 20;

/// What a program was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Refused {
    program: String,
    functions: Vec<String>,
}

/// What the program of a run directory was refused so far, in the order in which it was.
pub fn read(run_directory: &Path) -> Vec<String> {
    let open = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(run_directory.join(REFUSED));
    let Some(file) = open.ok().filter(|file| file.metadata().is_ok_and(|found| found.is_file())) else {
        return Vec::new();
    };
    let mut bytes = Vec::new();
    let _ = file.take(LONGEST).read_to_end(&mut bytes);
    let mut names = Vec::new();
    for line in String::from_utf8_lossy(&bytes).lines() {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_name = line.starts_with("cu") && line.len() <= LONGEST_NAME && line.chars().all(is_letter);
        if is_name && names.len() < MOST_NAMES && !names.iter().any(|name| name == line) {
            names.push(line.to_string());
        }
    }
    names
}

/// What is remembered of a daemon's programs.
pub struct Memory {
    path: PathBuf,
}

static WRITING: Mutex<()> = Mutex::new(());

impl Memory {
    pub fn in_directory(directory: &Path) -> Memory {
        Memory { path: directory.join("refusals.json") }
    }

    /// What an earlier run of a program was refused.
    pub fn of(&self, program: &str) -> Vec<String> {
        let found = self.all().into_iter().find(|refused| refused.program == program);
        found.map(|refused| refused.functions).unwrap_or_default()
    }

    /// Remembers what a run of a program was refused, in place of what one before it was.
    pub fn remember(&self, program: &str, functions: &[String]) {
        let _one_at_a_time = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.all();
        all.retain(|refused| refused.program != program);
        all.push(Refused { program: program.to_string(), functions: functions.to_vec() });
        all.drain(..all.len().saturating_sub(MOST_PROGRAMS));
        let written = serde_json::to_vec(&all)
            .map_err(std::io::Error::from)
            .and_then(|bytes| replace(&self.path, &bytes, PRIVATE, Outlasting::Nothing));
        if let Err(error) = written {
            log::warn!("what a program was refused is not remembered: {error}");
        }
    }

    fn all(&self) -> Vec<Refused> {
        let bytes = bounded::read(&self.path, LONGEST_MEMORY).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_alone_are_taken_and_nothing_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        assert!(read(directory.path()).is_empty());
        let text = format!(
            "cuMulticastCreate\ncu x\n../y\ncuMulticastCreate\ncu{}\ncuTexRefCreate\n",
            "a".repeat(100)
        );
        fs::write(directory.path().join(REFUSED), text).unwrap();
        assert_eq!(read(directory.path()), ["cuMulticastCreate", "cuTexRefCreate"]);
        fs::remove_file(directory.path().join(REFUSED)).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", directory.path().join(REFUSED)).unwrap();
        assert!(read(directory.path()).is_empty());
    }

    #[test]
    fn the_last_programs_are_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::in_directory(directory.path());
        assert!(memory.of("a").is_empty());
        memory.remember("a", &["cuA".to_string()]);
        memory.remember("a", &["cuB".to_string()]);
        assert_eq!(memory.of("a"), ["cuB"]);
        for number in 0..MOST_PROGRAMS {
            memory.remember(&number.to_string(), &["cuC".to_string()]);
        }
        assert!(memory.of("a").is_empty());
        assert_eq!(memory.of("0"), ["cuC"]);
        fs::write(directory.path().join("refusals.json"), "{").unwrap();
        assert!(memory.of("0").is_empty());
    }
}
