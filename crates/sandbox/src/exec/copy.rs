//! Files and directories as an archive, from one side to the other.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Writes what lies at `path` as an archive. Links are links there, too.
pub fn pack(path: &Path, to: &mut impl Write) -> io::Result<()> {
    let failed = |error: io::Error| io::Error::other(format!("cannot read {}: {error}", path.display()));
    let name = path.file_name().ok_or_else(|| failed(io::Error::other("it has no name of its own")))?;
    let mut archive = tar::Builder::new(to);
    archive.follow_symlinks(false);
    let found = fs::symlink_metadata(path).map_err(failed)?;
    match found.is_dir() {
        true => archive.append_dir_all(name, path),
        false => archive.append_path_with_name(path, name),
    }
    .and_then(|()| archive.into_inner()?.flush())
    .map_err(failed)
}

/// Puts what an archive of [`pack`]'s has at `path`: into it if that is a directory, else under that name.
pub fn unpack(from: impl Read, path: &Path) -> io::Result<()> {
    let failed = |error: io::Error| io::Error::other(format!("cannot write {}: {error}", path.display()));
    if path.is_dir() {
        return unpack_into(from, path).map_err(failed);
    }
    let beside = Beside::make(path).map_err(failed)?;
    unpack_into(from, &beside.0).map_err(failed)?;
    let mut all = fs::read_dir(&beside.0).map_err(failed)?;
    let only = all.next().transpose().map_err(failed)?.map(|entry| entry.path());
    let only = only.ok_or_else(|| failed(io::Error::other("nothing came")))?;
    fs::rename(only, path).map_err(failed)
}

/// What would come to lie outside is left out.
fn unpack_into(from: impl Read, directory: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(from);
    archive.set_preserve_permissions(true);
    archive.set_preserve_mtime(true);
    archive.unpack(directory)
}

/// A directory beside a path, which goes with this.
struct Beside(PathBuf);

impl Beside {
    fn make(path: &Path) -> io::Result<Beside> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for number in 0u32.. {
            let place = parent.join(format!(".rekindle-copy-{}-{number}", std::process::id()));
            match fs::create_dir(&place) {
                Ok(()) => return Ok(Beside(place)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // What is left there was not wanted, and is told of by the error.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn through(from: &Path, to: &Path) -> io::Result<()> {
        let mut archive = Vec::new();
        pack(from, &mut archive)?;
        unpack(&*archive, to)
    }

    #[test]
    fn files_and_directories_come_as_they_are_under_a_name_or_into_a_directory() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("from/inner")).unwrap();
        fs::write(at("from/inner/file"), "text").unwrap();
        fs::set_permissions(at("from/inner/file"), fs::Permissions::from_mode(0o751)).unwrap();
        symlink("/nowhere", at("from/link")).unwrap();
        fs::create_dir(at("place")).unwrap();
        through(&at("from"), &at("other")).unwrap();
        through(&at("from"), &at("place")).unwrap();
        for copied in ["other", "place/from"] {
            let file = at(copied).join("inner/file");
            assert_eq!(fs::read_to_string(&file).unwrap(), "text");
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o751);
            assert_eq!(fs::read_link(at(copied).join("link")).unwrap(), Path::new("/nowhere"));
        }
        fs::write(at("old"), "old").unwrap();
        through(&at("from/inner/file"), &at("old")).unwrap();
        assert_eq!(fs::read_to_string(at("old")).unwrap(), "text");
        assert!(through(&at("missing"), &at("x")).unwrap_err().to_string().contains("missing"));
        assert!(through(&at("old"), &at("no/such/place")).unwrap_err().to_string().contains("no/such"));
        assert!(fs::read_dir(root.path()).unwrap().count() == 4, "nothing else is left");
    }

    #[test]
    fn nothing_of_an_archive_comes_to_lie_outside() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("place");
        fs::create_dir(&place).unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o644);
        let name = b"../outside";
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_cksum();
        archive.append(&header, &b"evil"[..]).unwrap();
        let _ = unpack(&*archive.into_inner().unwrap(), &place);
        assert!(!root.path().join("outside").exists());
    }
}
