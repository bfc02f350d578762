//! Files that are replaced as a whole: who reads one finds what was there before, or all that was written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// What is certain to be there after the machine has lost its power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlasting {
    /// Either file, or an empty one.
    Nothing,
    /// One of the two, whole.
    Contents,
    /// The new one.
    Name,
}

/// For the daemon's user alone.
pub const PRIVATE: u32 = 0o600;
/// For all to read.
pub const PUBLIC: u32 = 0o644;

/// Writes a file beside its place, in a name that ends in `.partial`, and moves it there. After an error the place is as it
/// was. Who replaces the same file at once takes turns.
pub fn replace(place: &Path, contents: &[u8], mode: u32, outlasting: Outlasting) -> io::Result<()> {
    let partial = place.with_added_extension("partial");
    let write = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&partial)?;
        // One that was left there has a mode of its own.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(contents)?;
        if outlasting != Outlasting::Nothing {
            file.sync_data()?;
        }
        fs::rename(&partial, place)
    };
    write().inspect_err(|_| drop(fs::remove_file(&partial)))?;
    match (outlasting, place.parent()) {
        (Outlasting::Name, Some(directory)) => File::open(directory)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_leaves_nothing_beside() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("record.json");
        fs::write(place.with_added_extension("partial"), "of a daemon that died, which was longer").unwrap();
        for (contents, outlasting) in [("first", Outlasting::Name), ("2", Outlasting::Nothing)] {
            replace(&place, contents.as_bytes(), PRIVATE, outlasting).unwrap();
            assert_eq!(fs::read_to_string(&place).unwrap(), contents);
        }
        assert_eq!(fs::metadata(&place).unwrap().mode() & 0o777, PRIVATE);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_moved_there_leaves_the_place_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("place");
        fs::create_dir(&place).unwrap();
        replace(&place, b"words", PUBLIC, Outlasting::Contents).unwrap_err();
        assert!(place.is_dir());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
