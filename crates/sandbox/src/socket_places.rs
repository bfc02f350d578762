//! The directories of Unix sockets that have a path. CRIU binds such a socket where it was, and programs remove the
//! directories of theirs when they end (multiprocessing's managers do), so that a later restore would not find them.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::Path;

use crate::descriptors::{Described, FILES, Unix};
use crate::pages::image::Entries;

/// Makes those of the dump in `images` that are not there: for the sockets' owners alone, as temporary ones are.
pub fn make(images: &Path) -> Result<(), String> {
    let path = images.join(FILES);
    if !path.exists() {
        return Ok(());
    }
    for socket in Unix::all(&Entries::read(&path)?.entries) {
        let name = socket.name();
        let place = Path::new(OsStr::from_bytes(name.strip_suffix(b"\0").unwrap_or(name)));
        if let Some(directory) = place.parent().filter(|directory| directory.is_absolute()) {
            make_one(directory, socket.owner()).map_err(|error| {
                format!(
                    "the program has a Unix socket in {}, which is not there and cannot be made: {error}; make that directory",
                    directory.display()
                )
            })?;
        }
    }
    Ok(())
}

fn make_one(directory: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(above) = directory.parent() {
        make_one(above, owner)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        // Another restore of the image was faster.
        Err(_) if directory.is_dir() => return Ok(()),
        made => made?,
    }
    owner.map_or(Ok(()), |(user, group)| chown(directory, Some(user), Some(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_directories_are_made_and_others_left() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        make_one(&deep, None).unwrap();
        std::fs::write(deep.join("kept"), "").unwrap();
        make_one(&deep, None).unwrap();
        assert!(deep.join("kept").exists());
        std::fs::write(root.path().join("file"), "").unwrap();
        make_one(&root.path().join("file/c"), None).unwrap_err();
    }
}
