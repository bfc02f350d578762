//! The name of a state directory, by which its daemons know what is theirs among what others have made.
//!
//! It lies in the state, with the directory that it was made for: a copy of a state is another state.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::replace::{Outlasting, PRIVATE, replace};
use crate::error::{Error, Result};

/// In the state: `NAME DEVICE INODE`.
const FILE: &str = "name";
/// Bytes of a name and of what follows it, each written with two letters.
const BYTES: usize = 4;

/// The name of this state, which is made if there is none. To be called with the state locked.
pub fn of(state: &Path) -> String {
    let read = || -> io::Result<(String, String)> {
        let meta = fs::metadata(state)?;
        let text = fs::read_to_string(state.join(FILE)).unwrap_or_default();
        Ok((format!("{} {}", meta.dev(), meta.ino()), text))
    };
    let (here, found) = read().unwrap_or_default();
    if let Some((name, of)) = found.trim().split_once(' ')
        && of == here
        && name.len() == 2 * BYTES
        && name.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return name.to_string();
    }
    // On a full disk a daemon must start all the same, to remove images. The next one then makes a name of its own, and
    // leaves alone what this one has made and no record tells of.
    let made = random().unwrap_or_default();
    let text = format!("{made} {here}\n");
    let written = replace(&state.join(FILE), text.as_bytes(), PRIVATE, Outlasting::Nothing);
    if let Err(error) = written {
        log::warn!("the name of {} cannot be kept: {error}", state.display());
    }
    made
}

pub fn random() -> Result<String> {
    let mut bytes = [0; BYTES];
    let read = fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|source| Error::system("read random bytes", source))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_keeps_its_name_and_a_copy_has_another() {
        let root = tempfile::tempdir().unwrap();
        let (state, moved, copy) = (root.path().join("a"), root.path().join("b"), root.path().join("c"));
        fs::create_dir(&state).unwrap();
        let name = of(&state);
        assert_eq!((name.len(), of(&state)), (2 * BYTES, name.clone()));
        fs::rename(&state, &moved).unwrap();
        assert_eq!(of(&moved), name);
        fs::create_dir(&copy).unwrap();
        fs::copy(moved.join(FILE), copy.join(FILE)).unwrap();
        assert_ne!(of(&copy), name);
        fs::write(moved.join(FILE), "../x").unwrap();
        assert_eq!(of(&moved).len(), 2 * BYTES);
    }
}
