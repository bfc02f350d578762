//! Memory that all workers of a GPU have mapped: a file for each GPU, with slots that end with their process, and words that are
//! waited for.
//!
//! A slot is its worker's for as long as that holds the lock of the slot's byte of the file, which the kernel takes from a process
//! that ends.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

/// Maps so many bytes of the file of the GPU with this UUID, whose name begins so. What nobody has written is 0.
pub(crate) fn open(
    directory: &Path,
    name: &str,
    uuid: &[u8; 16],
    bytes: usize,
) -> io::Result<(File, MmapRaw)> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let path = directory.join(format!("{name}{}", rekindle_device::uuid_text(uuid)));
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_len(bytes as u64)?;
    let mapping = MmapOptions::new().len(bytes).map_raw(&file)?;
    Ok((file, mapping))
}

/// Takes the first of so many slots that nobody has; none if all are taken.
pub(crate) fn take_slot(file: &File, slots: usize) -> Option<usize> {
    let take = |slot: usize| {
        let range = byte(slot);
        // SAFETY: reads one valid structure.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) == 0 }
    };
    (0..slots).find(|slot| take(*slot))
}

/// Whether another worker has this slot.
pub(crate) fn is_taken(file: &File, slot: usize) -> bool {
    let mut range = byte(slot);
    // SAFETY: changes one valid structure.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut range) };
    asked == 0 && range.l_type != libc::F_UNLCK as libc::c_short
}

/// Sleeps until the word is woken or is not what was `seen`, and no longer than `limit`.
pub(crate) fn wait(word: &AtomicU32, seen: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word lives as long as the borrow, and the kernel only reads it; every outcome means "look again".
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &limit) };
}

pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word lives as long as the borrow; waking touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

fn byte(slot: usize) -> libc::flock {
    // SAFETY: zero bytes are a valid structure.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    (range.l_start, range.l_len) = (slot as libc::off_t, 1);
    range
}
