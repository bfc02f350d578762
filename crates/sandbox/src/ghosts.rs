//! Deleted files that a program held open, while a restore brings them back.
//!
//! CRIU gives such a file a name for a moment, next to where it once was and under a name that only depends on
//! the dump. So dumps that have such files are restored in turn, until the program runs, and the names that a
//! failed restore may have left are removed before the next turn.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

static LOCK: Mutex<()> = Mutex::new(());

/// The right to have deleted files under a name.
pub type GhostLock = MutexGuard<'static, ()>;

/// Waits for the lock, if the dump has such files.
pub fn lock(images_dir: &Path) -> Option<GhostLock> {
    let entries = fs::read_dir(images_dir).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    let needed = names.any(|name| name.as_bytes().starts_with(b"ghost-file-"));
    needed.then(|| LOCK.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Removes what a failed restore left; to be called with the lock, with all its processes gone.
pub fn clean(log: &Path) {
    let text = fs::read(log).unwrap_or_default();
    for path in String::from_utf8_lossy(&text).lines().filter_map(ghost) {
        // Mostly CRIU has removed it.
        let _ = fs::remove_file(path);
    }
}

/// The name from a line such as `(00.01) 1000: Opening ghost file 0x4 for tmp/#123`.
fn ghost(line: &str) -> Option<PathBuf> {
    let (_, text) = line.split_once("Opening ghost file ")?;
    let (id, path) = text.split_once(" for ")?;
    let id = id.strip_prefix("0x").unwrap_or(id);
    id.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| format!("/{path}.cr.{id}.ghost").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_criu_s_own_names_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (deleted, other) = (dir.path().join("#12.cr.a.ghost"), dir.path().join("#12"));
        fs::write(&deleted, "").unwrap();
        fs::write(&other, "").unwrap();
        let path = other.strip_prefix("/").unwrap().display().to_string();
        let log = dir.path().join("log");
        fs::write(
            &log,
            format!("(00.01)   1000: Opening ghost file 0xa for {path}\nOpening ghost file x y\n"),
        )
        .unwrap();
        clean(&log);
        assert!(!deleted.exists() && other.exists());
        clean(&dir.path().join("no log"));
    }
}
