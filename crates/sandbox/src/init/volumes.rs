//! Volumes: directories and files of the machine's at other paths in the sandbox.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rekindle_protocol::mounts::Volume;

use super::mounts::bind;

/// Mounts all, the outer before the inner; to be called while `/proc` is still the host's.
pub fn mount(volumes: &[Volume]) -> Result<(), String> {
    let mut opened = Vec::new();
    // Before the first is mounted, which may lie over what another one shows.
    for volume in volumes {
        opened.push((volume, open(&volume.host).map_err(|error| failed(volume, &error))?));
    }
    opened.sort_by_key(|(volume, _)| volume.inside.components().count());
    for (volume, source) in opened {
        let mounted = bind(source.as_fd(), &volume.inside).and_then(|()| match volume.read_only {
            true => protect(&volume.inside),
            false => Ok(()),
        });
        mounted.map_err(|error| failed(volume, &error))?;
    }
    Ok(())
}

fn failed(volume: &Volume, error: &io::Error) -> String {
    format!("mounting the volume {volume}: {error}")
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)
}

/// Lets nobody write there, nor to what is mounted beneath.
fn protect(path: &Path) -> io::Result<()> {
    let mount = open(path)?;
    // SAFETY: all bytes zero are a valid value of this plain structure.
    let mut wanted: libc::mount_attr = unsafe { std::mem::zeroed() };
    wanted.attr_set = libc::MOUNT_ATTR_RDONLY;
    // SAFETY: the path is empty and ends with a zero byte; the structure is whole and its size is given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
