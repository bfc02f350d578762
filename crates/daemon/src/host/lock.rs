//! One daemon a state directory, and one daemon a sandbox's run directory, by locks that the kernel lets go when the
//! daemon dies.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::host::HostError;
use crate::host::paths::Paths;

/// How long a daemon that was told to end may still hold it. Who asks for another one tries again.
const ENDING: Duration = Duration::from_secs(1);
/// How long, from the first look on, a daemon that was killed may still have run directories: until the kernel has closed
/// all that it had, and processes that it was making have become other programs.
const CLOSING: Duration = Duration::from_secs(5);

/// Held for the life of the daemon.
pub struct Lock {
    _file: File,
}

impl Lock {
    pub fn take(paths: &Paths) -> Result<Lock> {
        let path = paths.lock();
        let failed = |source| Error::io("lock", &path, source);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match lock(&file, Instant::now() + ENDING) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = (&mut file).take(4096).read_to_string(&mut holder);
                return Err(HostError::AlreadyRunning {
                    state: paths.state.clone(),
                    holder: holder.trim().to_string(),
                }
                .into());
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // Who holds it is only said to be helpful; on a full disk a daemon must start all the same, to remove images.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "pid {} on {}", std::process::id(), paths.socket.display()));
        Ok(Lock { _file: file })
    }
}

/// A sandbox's run directory for this daemon alone, for as long as what is returned is kept.
pub fn claim(run_directory: &Path) -> Result<File> {
    let failed = |source| Error::io("lock", run_directory, source);
    let directory = File::open(run_directory).map_err(failed)?;
    static FIRST: OnceLock<Instant> = OnceLock::new();
    match lock(&directory, *FIRST.get_or_init(Instant::now) + CLOSING) {
        Ok(()) => Ok(directory),
        Err(TryLockError::WouldBlock) => Err(HostError::Foreign { path: run_directory.to_path_buf() }.into()),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

fn lock(file: &File, until: Instant) -> std::result::Result<(), TryLockError> {
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_directory_is_had_when_its_last_holder_lets_go() {
        let directory = tempfile::tempdir().unwrap();
        let open = || File::open(directory.path()).unwrap();
        let (holder, wanted) = (open(), open());
        holder.try_lock().unwrap();
        assert!(matches!(lock(&wanted, Instant::now()), Err(TryLockError::WouldBlock)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lock(&wanted, Instant::now() + Duration::from_secs(120)));
            drop(holder);
            waits.join().unwrap().unwrap();
        });
        assert!(matches!(lock(&open(), Instant::now()), Err(TryLockError::WouldBlock)));
    }
}
