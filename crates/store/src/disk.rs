//! Every change that the store makes to the file system goes through here: one place that maps
//! errors, sets modes (files 0600, directories 0700) and lets tests provoke faults.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use crate::bounded;
use crate::error::{Error, Result};
use crate::faults::Faults;

/// A file system as the store sees it. Cheap to share behind an `Arc`.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    faults: Faults,
    /// What is made durable is left to the kernel.
    is_transient: bool,
}

/// What a new file or directory is reckoned to take beside its contents.
const BLOCK: u64 = 4096;

/// When a file was last written, nanoseconds since 1970.
pub fn modified_ns(found: &fs::Metadata) -> i64 {
    found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec())
}

impl Disk {
    pub fn new(faults: Faults) -> Disk {
        Disk { faults, is_transient: false }
    }

    /// One whose files are of use to processes that run now alone.
    pub fn transient(faults: Faults) -> Disk {
        Disk { faults, is_transient: true }
    }

    fn act<T>(
        &self,
        action: &'static str,
        path: &Path,
        needed: u64,
        call: impl FnOnce() -> io::Result<T>,
    ) -> Result<T> {
        self.faults
            .step(needed)
            .and_then(|()| call())
            .map_err(|source| Error::io(action, path, needed.max(BLOCK), source))
    }

    /// Makes a directory; it may exist already, and must not be a link to one.
    pub fn create_dir(&self, path: &Path) -> Result<()> {
        if bounded::is_there(path) {
            return bounded::check_directory(path);
        }
        self.act("create directory", path, BLOCK, || match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        })
    }

    /// Creates a file that must not exist yet.
    pub fn create_new(&self, path: &Path) -> Result<File> {
        self.act("create", path, BLOCK, || {
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
        })
    }

    /// Opens a regular file for reading and writing, creating it if need be.
    pub fn open_or_create(&self, path: &Path) -> Result<File> {
        self.act("open", path, 0, || Ok(()))?;
        let mut options = OpenOptions::new();
        bounded::open_with(options.read(true).write(true).create(true).truncate(false).mode(0o600), path)
    }

    /// Writes to a file, which `path` names.
    pub fn write(&self, mut file: &File, data: &[u8], path: &Path) -> Result<()> {
        self.act("write", path, data.len() as u64, || file.write_all(data))
    }

    /// Writes a whole new file; on an error nothing is left of it.
    pub fn write_new(&self, path: &Path, data: &[u8]) -> Result<File> {
        let file = self.create_new(path)?;
        if let Err(error) = self.write(&file, data, path) {
            let _ = self.remove_file(path);
            return Err(error);
        }
        Ok(file)
    }

    /// Writes to a place in a file, which `path` names.
    pub fn write_at(&self, file: &File, data: &[u8], offset: u64, path: &Path) -> Result<()> {
        self.act("write", path, data.len() as u64, || file.write_all_at(data, offset))
    }

    /// Makes a file so long, with a hole at its end if need be.
    pub fn set_length(&self, file: &File, bytes: u64, path: &Path) -> Result<()> {
        self.act("set the length of", path, 0, || file.set_len(bytes))
    }

    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.act("rename into place", to, 0, || fs::rename(from, to))
    }

    /// Renames unless `to` exists; says whether it was done.
    pub fn rename_new(&self, from: &Path, to: &Path) -> Result<bool> {
        self.act("rename into place", to, 0, || {
            match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
                Ok(()) => Ok(true),
                Err(nix::Error::EEXIST) | Err(nix::Error::ENOTEMPTY) => Ok(false),
                Err(errno) => Err(errno.into()),
            }
        })
    }

    /// Gives the file at `from` a second name.
    pub fn link(&self, from: &Path, to: &Path) -> Result<Linked> {
        self.act("link", to, 0, || match fs::hard_link(from, to) {
            Ok(()) => Ok(Linked::Made),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Linked::NoSource),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Linked::Exists),
            Err(error) if error.kind() == io::ErrorKind::TooManyLinks => Ok(Linked::NoSource),
            // A directory, which has no second name.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && from.is_dir() => {
                Ok(Linked::NoSource)
            }
            Err(error) => Err(error),
        })
    }

    /// Removes a file; it may be gone already.
    pub fn remove_file(&self, path: &Path) -> Result<()> {
        self.act("remove", path, 0, || gone_is_fine(fs::remove_file(path)))
    }

    /// Removes a directory with all that is in it, file by file so that a fault can strike
    /// between any two, or what else has this name; it may be gone already.
    pub fn remove_tree(&self, path: &Path) -> Result<()> {
        if fs::symlink_metadata(path).is_ok_and(|found| !found.is_dir()) {
            return self.remove_file(path);
        }
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io("list", path, 0, error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| Error::io("list", path, 0, error))?;
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.remove_tree(&entry.path())?,
                _ => self.remove_file(&entry.path())?,
            }
        }
        self.act("remove directory", path, 0, || gone_is_fine(fs::remove_dir(path)))
    }

    /// Makes a file's contents durable.
    pub fn sync_file(&self, file: &File, path: &Path) -> Result<()> {
        self.act("sync", path, 0, || if self.is_transient { Ok(()) } else { file.sync_data() })
    }

    /// Makes a directory's entries durable.
    pub fn sync_dir(&self, path: &Path) -> Result<()> {
        self.act("sync directory", path, 0, || {
            if self.is_transient { Ok(()) } else { File::open(path)?.sync_all() }
        })
    }

    /// Asks the kernel to begin writing a file back, without waiting: the sync at the end then
    /// finds most of it done.
    pub fn start_writeback(&self, file: &File) {
        use std::os::fd::AsRawFd;
        // SAFETY: the descriptor is open for as long as `file` is borrowed, and the call touches
        // no memory of ours. It is advice: a failure loses only the head start.
        unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }
}

/// What became of a request for a second name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Linked {
    Made,
    NoSource,
    Exists,
}

fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
