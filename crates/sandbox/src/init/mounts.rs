//! What a sandbox sees of the file system: the host's, but a `/proc` and a `/dev/shm` of its own, its volumes, and its
//! run directory at [`RUN_PATH`], so that a path in a dumped program is right under any name.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use rekindle_protocol::mounts::Mounts;

use crate::pages::DIRECTORY;

use super::findings::{Cache, FINDINGS_NAME};
use super::volumes;

/// Where the program finds the run directory.
pub const RUN_PATH: &str = "/run/rekindle";
/// Where the program's output goes, as the program sees it.
pub const LOG_PATH: &str = "/run/rekindle/log";
/// Where the log's index lies, which the program has no use for.
pub const INDEX_PATH: &str = "/run/rekindle/log.index";

/// What the outer process has opened on the host for init.
pub struct HostPaths<'a> {
    pub run: BorrowedFd<'a>,
    pub log: Option<BorrowedFd<'a>>,
    pub index: Option<BorrowedFd<'a>>,
    pub cache: Option<&'a Cache>,
    pub pages: Option<BorrowedFd<'a>>,
    /// What the program sees beside the machine's files.
    pub mounts: &'a Mounts,
    /// The most bytes of the log that are kept.
    pub log_max: u64,
}

/// Mounts all but overlays; to be called by pid 1 of fresh namespaces while `/proc` is still the host's.
pub fn set_up(places: &HostPaths<'_>) -> Result<(), String> {
    // What the host unmounts later is let go of here too; nothing of ours shows there.
    let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, slave, None::<&str>)
        .map_err(|error| format!("detaching the mounts from the host's: {error}"))?;
    volumes::mount(&places.mounts.volumes)?;
    let on_tmpfs = statfs("/run").is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC);
    let cache = places.cache.filter(|_| !on_tmpfs);
    if cache.is_some() || make_dir(RUN_PATH.as_ref()).is_err() {
        cover_run().map_err(|error| format!("covering /run: {error}"))?;
        make_dir(RUN_PATH.as_ref()).map_err(|error| format!("making {RUN_PATH}: {error}"))?;
        cache.map_or(Ok(()), Cache::copy_in).map_err(|error| format!("copying CRIU's findings: {error}"))?;
    }
    bind(places.run, RUN_PATH.as_ref())
        .and_then(|()| remount(RUN_PATH.as_ref(), MsFlags::empty()))
        .map_err(|error| format!("mounting {RUN_PATH}: {error}"))?;
    for (file, path) in [(places.log, LOG_PATH), (places.index, INDEX_PATH)] {
        let Some(file) = file else { continue };
        let target = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        target
            .and_then(|_| bind(file, path.as_ref()))
            .map_err(|error| format!("mounting {path}: {error}"))?;
    }
    if let Some(pages) = places.pages {
        let target = Path::new(RUN_PATH).join(DIRECTORY);
        let mounted = make_dir(&target)
            .and_then(|()| bind(pages, &target))
            .and_then(|()| remount(&target, MsFlags::MS_RDONLY));
        mounted.map_err(|error| format!("mounting {}: {error}", target.display()))?;
    }
    let inert = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("rekindle"), "/dev/shm", Some("tmpfs"), inert, Some("mode=1777"))
        .map_err(|error| format!("mounting a /dev/shm: {error}"))?;
    mount(Some("proc"), "/proc", Some("proc"), inert | MsFlags::MS_NOEXEC, None::<&str>)
        .map_err(|error| format!("mounting a /proc: {error}"))
}

fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

pub(super) fn bind(source: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let source = format!("/proc/self/fd/{}", source.as_raw_fd());
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    Ok(mount(Some(source.as_str()), target, None::<&str>, flags, None::<&str>)?)
}

/// Without NOEXEC, whatever the file system says: what is mapped from here is code, or may become it.
fn remount(target: &Path, more: MsFlags) -> io::Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | more;
    Ok(mount(None::<&str>, target, None::<&str>, flags, None::<&str>)?)
}

/// Puts a writable tmpfs over `/run`, with everything of the old one in it.
fn cover_run() -> io::Result<()> {
    let old = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open("/run")?;
    mount(Some("rekindle"), "/run", Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=755"))?;
    let beneath = format!("/proc/self/fd/{}", old.as_fd().as_raw_fd());
    for entry in fs::read_dir(&beneath)? {
        let entry = entry?;
        // CRIU's own, and unfinished: it could not put a new one in the place of a mount.
        if entry.file_name().as_bytes().starts_with(FINDINGS_NAME) {
            continue;
        }
        let (from, to) = (entry.path(), Path::new("/run").join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
            continue;
        }
        if kind.is_dir() {
            make_dir(&to)?;
        } else {
            File::create(&to)?;
        }
        mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    }
    Ok(())
}
