//! Memory of the host in a file without a name, whose descriptor processes hand on.
//!
//! It has pages of 2 MB where the kernel finds some. Pages of 4 KB are given to a file at 1 to 3 GB/s, however many threads
//! fill it; large ones about as fast as memory can be cleared, and a GPU learns them faster. For `memfd_create` the size of
//! pages is a switch of the whole machine. Of a tmpfs it is an option, so each process has one of its own, which is mounted
//! nowhere. Who may not have one gets a `memfd`.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use nix::fcntl::posix_fallocate;
use nix::sys::memfd::{MFdFlags, memfd_create};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// A file of so many bytes, all zeros, which get memory when they are written. What it holds goes with the last descriptor and
/// mapping. Errors are the kernel's.
pub fn new(bytes: u64) -> io::Result<File> {
    let file = match tmpfs() {
        Some(tmpfs) => openat(tmpfs, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RWXU)?,
        None => memfd_create(c"rekindle", MFdFlags::MFD_CLOEXEC)?,
    };
    let file = File::from(file);
    file.set_len(bytes)?;
    Ok(file)
}

/// As [`new`], and its memory is there: a store to it cannot find that there is none left.
pub fn filled(bytes: u64) -> io::Result<File> {
    let file = new(bytes)?;
    if bytes > 0 {
        let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        posix_fallocate(&file, 0, length)?;
    }
    Ok(file)
}

/// None where this process may not have one.
fn tmpfs() -> Option<&'static OwnedFd> {
    static TMPFS: OnceLock<Option<OwnedFd>> = OnceLock::new();
    TMPFS.get_or_init(|| mount().ok()).as_ref()
}

fn mount() -> rustix::io::Result<OwnedFd> {
    use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Not beyond a file's end: a small one takes no large page.
    fsconfig_set_string(&context, "huge", "within_size")?;
    // As much as the machine has, as with memfd_create.
    fsconfig_set_string(&context, "size", "0")?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn files_are_of_their_size_and_read_by_who_may_only_read() {
        for bytes in [0, 1, 4096, 5 << 20] {
            let made = new(bytes).unwrap();
            assert_eq!(made.metadata().unwrap().len(), bytes);
            let reader = File::open(format!("/proc/self/fd/{}", made.as_raw_fd())).unwrap();
            if bytes > 0 {
                made.write_all_at(b"x", bytes - 1).unwrap();
                let mut seen = [0];
                reader.read_exact_at(&mut seen, bytes - 1).unwrap();
                assert_eq!(&seen, b"x");
            }
            assert!(reader.write_at(b"y", 0).is_err() && reader.set_len(0).is_err());
        }
    }

    #[test]
    fn what_is_filled_has_its_memory() {
        let made = filled(3 << 20).unwrap();
        let blocks = made.metadata().unwrap().blocks();
        assert!(blocks * 512 >= 3 << 20 && blocks * 512 < 4 << 20, "{blocks} blocks");
    }

    #[test]
    fn two_files_are_apart() {
        let (one, other) = (new(4096).unwrap(), new(4096).unwrap());
        one.write_all_at(b"one", 0).unwrap();
        let mut seen = [1; 3];
        other.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [0; 3]);
    }
}
