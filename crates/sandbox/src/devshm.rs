//! Named files in a sandbox's private `/dev/shm`, which a dump takes along and a restore puts back.
//!
//! CRIU keeps the contents of deleted files only; named ones it expects to find. They are copied into the
//! images while the program stands still, holes left as holes.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

/// The directory's name among the images.
pub const NAME: &str = "devshm";
const BLOCK: usize = 1 << 16;

/// Copies the regular files and directories under `from` into `to`, which is made where there are any.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let meta = entry.metadata()?;
        if !to.exists() {
            fs::create_dir(to)?;
        }
        let target = to.join(entry.file_name());
        if kind.is_dir() {
            if !target.exists() {
                fs::create_dir(&target)?;
            }
            copy(&entry.path(), &target)?;
        } else if kind.is_file() && !is_criu_link(&entry.file_name()) {
            copy_file(&entry.path(), &target, meta.len())?;
        } else {
            continue;
        }
        chown(&target, Some(meta.uid()), Some(meta.gid()))?;
        fs::set_permissions(&target, Permissions::from_mode(meta.mode() & 0o7777))?;
    }
    Ok(())
}

/// CRIU gives deleted files that are still linked elsewhere a name for the time of the dump.
fn is_criu_link(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with("link_remap.")
}

fn copy_file(from: &Path, to: &Path, length: u64) -> io::Result<()> {
    let mut source = File::open(from)?;
    let mut target = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    let mut block = vec![0; BLOCK];
    loop {
        let got = source.read(&mut block)?;
        if got == 0 {
            break;
        }
        if block[..got].iter().all(|&byte| byte == 0) {
            target.seek(SeekFrom::Current(got as i64))?;
        } else {
            target.write_all(&block[..got])?;
        }
    }
    target.set_len(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_directories_modes_and_holes_are_kept() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = to.path().join("copy");
        copy(from.path(), &target).unwrap();
        assert!(!target.exists(), "nothing to copy makes no directory");

        fs::create_dir(from.path().join("d")).unwrap();
        fs::write(from.path().join("d/f"), b"text").unwrap();
        fs::set_permissions(from.path().join("d/f"), Permissions::from_mode(0o640)).unwrap();
        let hole = File::create(from.path().join("hole")).unwrap();
        hole.set_len(1 << 24).unwrap();
        copy(from.path(), &target).unwrap();
        assert_eq!(fs::read(target.join("d/f")).unwrap(), b"text");
        assert_eq!(fs::metadata(target.join("d/f")).unwrap().mode() & 0o7777, 0o640);
        let copied = fs::metadata(target.join("hole")).unwrap();
        assert_eq!(copied.len(), 1 << 24);
        assert!(copied.blocks() < 100);
    }
}
