//! The kernel's switch for large pages, set to `always` while the driver fills a process's memory.
//!
//! Nobody but the process itself can ask for large pages for a part of its memory, and the driver does not. With them
//! the step is quicker, and so are CRIU's walk through that memory and the end of the process.
//!
//! The switch is the whole machine's: what other programs map anew in those seconds gets large pages too. So it is
//! written down before it is set, and whoever finishes the operation sets it back; one operation of a machine has it at
//! a time, the others go without.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use rekindle_protocol::tuning;
use serde::{Deserialize, Serialize};

const SWITCH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const WANTED: &str = "always";

/// What the switch was, and is to be again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Previous {
    path: PathBuf,
    word: String,
}

/// The right to set the switch.
pub struct Switch {
    file: File,
    pub previous: Previous,
}

impl Switch {
    /// None where it is set already, may not be written, or somebody else has it.
    pub fn take() -> Option<Switch> {
        // Another file in its place, or `off`.
        match tuning::word(tuning::HUGE_PAGES) {
            None => Switch::at(Path::new(SWITCH)),
            Some(word) if word == "off" => None,
            Some(path) => Switch::at(Path::new(&path)),
        }
    }

    fn at(path: &Path) -> Option<Switch> {
        let file = OpenOptions::new().write(true).open(path).ok()?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
        }
        let word = chosen(&fs::read_to_string(path).ok()?)?;
        (word != WANTED).then(|| Switch { file, previous: Previous { path: path.to_path_buf(), word } })
    }

    /// To be called once the previous word is written down.
    pub fn set(self) -> Set {
        if let Err(error) = write(&self.previous.path, WANTED) {
            log::debug!("{} stays {}: {error}", self.previous.path.display(), self.previous.word);
        }
        Set { _file: self.file, previous: self.previous }
    }
}

/// The switch while it is set; it is set back when this is dropped.
pub struct Set {
    _file: File,
    previous: Previous,
}

impl Drop for Set {
    fn drop(&mut self) {
        self.previous.put_back();
    }
}

impl Previous {
    pub fn put_back(&self) {
        if let Err(error) = write(&self.path, &self.word) {
            log::warn!("{} could not be set back to {}: {error}", self.path.display(), self.word);
        }
    }
}

/// The kernel takes a word in one write, and keeps no length.
fn write(path: &Path, word: &str) -> io::Result<()> {
    fs::write(path, word)
}

/// The word in brackets.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_one_operation_s_and_is_set_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let is = |word: &str| fs::read_to_string(file.path()).unwrap() == word;
        fs::write(file.path(), "always [madvise] never\n").unwrap();
        let switch = Switch::at(file.path()).unwrap();
        assert!(Switch::at(file.path()).is_none(), "somebody has it");
        assert_eq!(switch.previous.word, "madvise");
        let set = switch.set();
        assert!(is("always"));
        drop(set);
        assert!(is("madvise"));
        for text in ["[always] madvise never\n", "", "always\n"] {
            fs::write(file.path(), text).unwrap();
            assert!(Switch::at(file.path()).is_none(), "{text:?}");
        }
        assert!(Switch::at(Path::new("/nonexistent/enabled")).is_none());
    }
}
