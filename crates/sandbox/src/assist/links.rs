//! What the links in `map_files` are, by which CRIU asks for each area whether a file is mapped there, and how that was opened.
//!
//! Looking one up takes the kernel some microseconds, and CRIU does so area by area. Several threads of ours do it as soon as
//! the program stands still, while CRIU looks at sockets and mounts. What they have not come to CRIU asks itself.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::areas::areas;
use super::{Assist, DescribedProcess, LENGTH};

/// So many threads look at most.
const THREADS: usize = 4;
/// As many links are worth a thread.
const WORTH: usize = 64;
/// There is no link, as no file is mapped.
const NONE: u32 = 1;

/// As in `in_criu.h`.
#[repr(C)]
struct Link {
    start: u64,
    end: u64,
    /// Its mode, or [`NONE`]; 0 while it is not known.
    mode: AtomicU32,
    unused: AtomicU32,
}

impl Assist {
    /// Writes down, from `at` on, which areas a description of a process has: of those without a file there is no more to be
    /// known. Where they end.
    pub(super) fn describe_links(&self, slot: &DescribedProcess, described: &[u8], at: usize) -> usize {
        let at = at.next_multiple_of(align_of::<Link>());
        let found: Vec<_> = areas(described).map(|(area, _)| read(area)).collect();
        let end = at + found.len() * size_of::<Link>();
        if end > LENGTH || found.iter().any(Option::is_none) {
            return at;
        }
        for (index, (start, last, has_file)) in found.into_iter().flatten().enumerate() {
            let mode = AtomicU32::new(if has_file { 0 } else { NONE });
            let link = Link { start, end: last, mode, unused: AtomicU32::new(0) };
            // SAFETY: within the mapping by the check above, aligned, and nobody reads it before the process is named.
            unsafe { self.memory.as_mut_ptr().add(at).cast::<Link>().add(index).write(link) };
        }
        slot.links.store(at as u64, Ordering::Relaxed);
        slot.link_count.store(((end - at) / size_of::<Link>()) as u64, Ordering::Relaxed);
        end
    }

    fn links(&self, slot: &DescribedProcess) -> &[Link] {
        let (at, count) = (slot.links.load(Ordering::Relaxed), slot.link_count.load(Ordering::Relaxed));
        if count == 0 {
            return &[];
        }
        // SAFETY: written by `describe_links`, within the mapping; only the modes change since, which are atomic.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(at as usize).cast(), count as usize) }
    }

    /// The program stands still: asks what the links of all processes that were described are.
    pub fn look_at_links(self: &Arc<Self>) {
        for (index, slot) in self.shared().areas.iter().enumerate() {
            let pid = slot.pid.load(Ordering::Acquire);
            let unknown =
                self.links(slot).iter().filter(|link| link.mode.load(Ordering::Relaxed) == 0).count();
            if pid == 0 || unknown == 0 {
                continue;
            }
            let threads = std::thread::available_parallelism().map_or(1, |most| most.get().min(THREADS));
            let threads = threads.min(unknown.div_ceil(WORTH));
            for part in 0..threads {
                let assist = self.clone();
                std::thread::spawn(move || {
                    let links = assist.links(&assist.shared().areas[index]);
                    // CRIU goes through them in their order, and so do we.
                    look(pid, links.iter().skip(part).step_by(threads));
                });
            }
        }
    }
}

/// Where an area is, and whether a file is mapped there, of its line in `maps`.
fn read(line: &[u8]) -> Option<(u64, u64, bool)> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (device, inode) = (words.nth(2)?, words.next()?);
    Some((number(start)?, number(end)?, device != "00:00" || inode != "0"))
}

fn look<'a>(pid: u32, links: impl Iterator<Item = &'a Link>) {
    let Ok(directory) = File::open(format!("/proc/{pid}/map_files")) else { return };
    for link in links.filter(|link| link.mode.load(Ordering::Relaxed) == 0) {
        let Ok(name) = CString::new(format!("{:x}-{:x}", link.start, link.end)) else { continue };
        // SAFETY: zero is a value of it, and the kernel fills it in.
        let mut meta: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the name ends with a zero, and the structure is ours.
        let done = unsafe {
            libc::fstatat(directory.as_raw_fd(), name.as_ptr(), &raw mut meta, libc::AT_SYMLINK_NOFOLLOW)
        };
        // What else there may be is CRIU's to find out.
        if done == 0 {
            link.mode.store(meta.st_mode, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_library() {
        assert_eq!(size_of::<Link>(), 24);
    }

    #[test]
    fn lines_say_whether_a_file_is_mapped() {
        assert_eq!(read(b"1000-2000 rw-p 00000000 00:00 0 "), Some((0x1000, 0x2000, false)));
        assert_eq!(read(b"1000-2000 rw-p 00000000 00:00 0       [heap]"), Some((0x1000, 0x2000, false)));
        assert_eq!(read(b"1000-2000 r-xp 00001000 fe:00 77   /lib/x"), Some((0x1000, 0x2000, true)));
        assert_eq!(
            read(b"1000-2000 rw-s 00000000 00:01 9  /dev/zero (deleted)"),
            Some((0x1000, 0x2000, true))
        );
        assert_eq!(read(b"1000 rw-p"), None);
    }

    #[test]
    fn links_are_found_with_their_modes() {
        let assist = Arc::new(Assist::new(false).unwrap());
        let own = std::process::id();
        assist.describe(vec![own as i32]);
        let slot = &assist.shared().areas[0];
        let links = assist.links(slot);
        assert!(links.len() > 10 && links.iter().any(|link| link.mode.load(Ordering::Relaxed) == NONE));
        look(own, links.iter());
        let known: Vec<_> = links.iter().map(|link| link.mode.load(Ordering::Relaxed)).collect();
        assert!(known.iter().any(|mode| mode & libc::S_IFMT == libc::S_IFLNK && mode & 0o600 == 0o400));
        // All that have a file, but for those that are gone since.
        assert!(known.iter().filter(|mode| **mode == 0).count() < known.len() / 4);
    }
}
