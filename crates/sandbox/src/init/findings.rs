//! What CRIU finds out about the kernel, handed from sandbox to sandbox.
//!
//! CRIU keeps its findings in `/run`, if that is a tmpfs. Where it is not, each sandbox gets a tmpfs there and
//! the findings are copied in and out, which saves some 20 ms a restore.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What CRIU's names for them begin with.
pub const FINDINGS_NAME: &[u8] = b"criu.kdat";
/// CRIU's own name for them.
const FINDINGS: &str = "/run/criu.kdat";
/// They have some hundred bytes.
const LONGEST: u64 = 1 << 20;

/// The file on the host that keeps them, reached by its directory: the sandbox has other mounts on its path.
#[derive(Debug)]
pub struct Cache {
    dir: File,
    name: OsString,
}

impl Cache {
    /// None where there is no such directory.
    pub fn open(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_owned();
        let dir = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path.parent()?).ok()?;
        Some(Self { dir, name })
    }

    fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.dir.as_raw_fd().to_string()).join(&self.name)
    }

    pub fn exists(&self) -> bool {
        // What else may lie there is not waited for, and not copied into memory.
        fs::symlink_metadata(self.path()).is_ok_and(|found| found.is_file() && found.len() <= LONGEST)
    }

    pub fn copy_in(&self) -> io::Result<()> {
        if self.exists() {
            fs::copy(self.path(), FINDINGS)?;
        }
        Ok(())
    }

    /// Keeps CRIU's findings if there are some now; whether that is settled.
    pub fn copy_out(&self) -> bool {
        if !Path::new(FINDINGS).exists() {
            return false;
        }
        let (path, mut beside) = (self.path(), self.name.clone());
        // Several sandboxes may come to this at once; each of them is pid 1 to itself.
        beside.push(format!(".{}", clock_ns()));
        let beside = path.with_file_name(beside);
        // Only time is lost without them.
        let _ = fs::copy(FINDINGS, &beside).and_then(|_| fs::rename(&beside, &path));
        true
    }
}

fn clock_ns() -> u128 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos())
}
