//! Who is at work in a store: locks on files, which the kernel lets go of when their holder dies.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::bounded;
use crate::disk::Disk;
use crate::error::{Error, Result};

/// Held while an image in the making has its maker.
#[derive(Debug)]
pub(crate) struct Lease {
    file: File,
    path: PathBuf,
}

impl Lease {
    /// Takes a lease on a new file, which says what it is for. None if another process took the
    /// file for one of a dead maker before it was locked.
    pub fn take(disk: &Disk, path: &Path, name: &str) -> Result<Option<Lease>> {
        let file = disk.create_new(path)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => {}
            Ok(()) | Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                let _ = disk.remove_file(path);
                return Err(Error::io("lock", path, 0, error));
            }
        }
        let lease = Lease { file, path: path.to_path_buf() };
        if let Err(error) = disk.write(&lease.file, name.as_bytes(), path) {
            let _ = lease.end(disk);
            return Err(error);
        }
        Ok(Some(lease))
    }

    /// Takes over a lease whose holder is dead, with the name that it was for; none if it is
    /// alive or the lease is gone.
    pub fn inherit(path: &Path) -> Result<Option<(Lease, String)>> {
        let mut file = match bounded::open(path) {
            Ok(file) => file,
            Err(error) if bounded::is_not_found(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => {
                let mut name = Vec::new();
                let limit = crate::names::LONGEST_NAME as u64;
                (&mut file)
                    .take(limit)
                    .read_to_end(&mut name)
                    .map_err(|error| Error::io("read", path, 0, error))?;
                let name = String::from_utf8_lossy(&name).into_owned();
                Ok(Some((Lease { file, path: path.to_path_buf() }, name)))
            }
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(Error::io("lock", path, 0, error)),
        }
    }

    /// Ends the lease and removes its file.
    pub fn end(self, disk: &Disk) -> Result<()> {
        disk.remove_file(&self.path)
    }
}

/// Whether the open file is still the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => open.ino() == there.ino() && open.dev() == there.dev(),
        _ => false,
    }
}

/// A lock held for one operation.
#[derive(Debug)]
pub(crate) struct Guard(#[expect(dead_code, reason = "the lock ends when the file is closed")] File);

impl Guard {
    /// Waits for others that need the lock alone.
    pub fn shared(disk: &Disk, path: &Path) -> Result<Guard> {
        Guard::lock(disk, path, File::lock_shared)
    }

    /// Waits for all others.
    pub fn alone(disk: &Disk, path: &Path) -> Result<Guard> {
        Guard::lock(disk, path, File::lock)
    }

    fn lock(disk: &Disk, path: &Path, lock: fn(&File) -> io::Result<()>) -> Result<Guard> {
        let file = disk.open_or_create(path)?;
        lock(&file).map_err(|error| Error::io("lock", path, 0, error))?;
        Ok(Guard(file))
    }
}
