//! Files that a program has mapped: what tells each from another, at a checkpoint and on the machine that restores it.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rekindle_code::elf::{Elf, ReadCache};
use rekindle_protocol::mounts::Mounts;
use serde::{Deserialize, Serialize};

use crate::inventory::{Mismatch, mapped_paths};
use crate::process::maps;

const EDGE: u64 = 4096;

/// A file that the program has mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFile {
    pub path: PathBuf,
    pub size: u64,
    pub modified_ns: i128,
    pub identity: Identity,
}

/// What tells a file from another of the same path and size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Identity {
    /// The linker's build id; the time of modification does not matter then.
    BuildId(String),
    /// A hash of the first and last page, together with the time of modification.
    Edges(String),
}

/// What changes whenever a file's contents do: device, inode, bytes, and when it was modified and changed, seconds and
/// nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State([i64; 7]);

/// Build ids of mapped files that were read while the program runs, so that they need not be while it stands still. Of other
/// files nothing is known: what a program writes through a mapping may change their contents and not yet their times.
#[derive(Debug, Default)]
pub struct KnownFiles(HashMap<State, Identity>);

impl KnownFiles {
    /// Those that the processes `pids` (ours) have now; what cannot be read is not known.
    pub fn read(pids: &[i32]) -> Self {
        let mut known = Self::default();
        for &pid in pids {
            for path in mapped_paths(&maps::if_there(pid)) {
                let reached = reached(pid, &path);
                if let Ok(meta) = fs::metadata(&reached)
                    && !known.0.contains_key(&State::of(&meta))
                    && let Ok((meta, identity @ Identity::BuildId(_))) = identify(&reached)
                {
                    known.0.insert(State::of(&meta), identity);
                }
            }
        }
        known
    }

    /// The file `path`, which can be opened as `reached`; it is read if it is not known, or has changed since.
    pub(crate) fn find(&self, path: PathBuf, reached: &Path) -> io::Result<MappedFile> {
        let meta = fs::metadata(reached).map_err(|error| named(&path, error))?;
        match self.0.get(&State::of(&meta)) {
            Some(identity) => Ok(MappedFile::with(path, &meta, identity.clone())),
            None => MappedFile::read(path, reached),
        }
    }
}

impl State {
    fn of(meta: &Metadata) -> Self {
        let (device, inode, bytes) = (meta.dev() as i64, meta.ino() as i64, meta.size() as i64);
        Self([device, inode, bytes, meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()])
    }
}

/// Where a file that the process `pid` (ours) has mapped can be opened, so that it is the one that is mapped there.
pub(crate) fn reached(pid: i32, path: &Path) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join("root").join(path.strip_prefix("/").unwrap_or(path))
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn identify(reached: &Path) -> io::Result<(Metadata, Identity)> {
    let file = File::open(reached)?;
    let meta = file.metadata()?;
    let identity = match Elf::read(&ReadCache::new(&file)).and_then(|elf| elf.build_id()) {
        Some(id) => Identity::BuildId(id),
        None => Identity::Edges(edges(&file, meta.len())?),
    };
    Ok((meta, identity))
}

/// When a file was written last, nanoseconds since 1970.
pub(crate) fn modified_ns(meta: &Metadata) -> i128 {
    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
}

impl MappedFile {
    /// `path` is its name in the sandbox, `reached` is where it can be opened.
    pub(crate) fn read(path: PathBuf, reached: &Path) -> io::Result<Self> {
        let (meta, identity) = identify(reached).map_err(|error| named(&path, error))?;
        Ok(Self::with(path, &meta, identity))
    }

    fn with(path: PathBuf, meta: &Metadata, identity: Identity) -> Self {
        Self { size: meta.len(), modified_ns: modified_ns(meta), identity, path }
    }

    pub(crate) fn check(&self, mounts: &Mounts) -> Option<Mismatch> {
        let path = self.path.clone();
        let now = match Self::read(path.clone(), &mounts.on_host(&path)) {
            Ok(now) => now,
            Err(error) => return Some(Mismatch::Missing { path, cause: error.to_string() }),
        };
        if self.size != now.size {
            let (found, expected) = (format!("{} bytes", now.size), format!("{} bytes", self.size));
            return Some(Mismatch::Changed { path, found, expected });
        }
        if self.identity != now.identity {
            let (found, expected) = (now.identity.to_string(), self.identity.to_string());
            return Some(Mismatch::Changed { path, found, expected });
        }
        if matches!(self.identity, Identity::Edges(_)) && self.modified_ns != now.modified_ns {
            let time = |ns: i128| format!("modified at {}.{:09} s", ns / 1_000_000_000, ns % 1_000_000_000);
            let (found, expected) = (time(now.modified_ns), time(self.modified_ns));
            return Some(Mismatch::Changed { path, found, expected });
        }
        None
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuildId(id) => write!(out, "build id {id}"),
            Self::Edges(hash) => write!(out, "contents {hash}"),
        }
    }
}

fn edges(file: &File, size: u64) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut page = vec![0; EDGE.min(size) as usize];
    for at in [0, size.saturating_sub(EDGE)] {
        file.read_exact_at(&mut page, at)?;
        hasher.update(&page);
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_not_read_again_unless_it_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        fs::write(&path, "one").unwrap();
        let (meta, identity) = identify(&path).unwrap();
        let other = Identity::Edges("known".into());
        assert_ne!(identity, other);
        let known = KnownFiles(HashMap::from([(State::of(&meta), other.clone())]));
        assert_eq!(known.find(path.clone(), &path).unwrap().identity, other);
        fs::write(&path, "two, which is longer").unwrap();
        assert_eq!(known.find(path.clone(), &path).unwrap(), MappedFile::read(path.clone(), &path).unwrap());
        let error = known.find("/gone".into(), Path::new("/gone")).unwrap_err();
        assert!(error.to_string().starts_with("/gone: "), "{error}");
    }

    #[test]
    fn a_process_s_libraries_are_known_and_what_it_may_write_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("written");
        fs::write(&path, vec![1; 4096]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        // SAFETY: nobody else has the file.
        let mut memory = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
        let pid = std::process::id() as i32;
        let known = KnownFiles::read(&[pid]);
        memory[0] = 2;
        let files = mapped_paths(&maps::of(pid).unwrap());
        assert!(files.contains(&path) && files.len() > 1);
        for path in files {
            let found = known.find(path.clone(), &path).unwrap();
            assert_eq!(found, MappedFile::read(path.clone(), &path).unwrap());
            let is_known = known.0.contains_key(&State::of(&fs::metadata(&path).unwrap()));
            assert_eq!(is_known, matches!(found.identity, Identity::BuildId(_)), "{}", path.display());
        }
        assert!(KnownFiles::read(&[-1]).0.is_empty());
    }
}
