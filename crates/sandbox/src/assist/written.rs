//! What of a process's pages was written to since they were protected, and whether guards are among them.
//!
//! To find that, the kernel walks over all page tables of a process, some milliseconds for one of some gigabytes. Threads of
//! ours ask as soon as the program stands still, while CRIU looks at sockets and areas. What they do not find CRIU asks about area
//! by area. What CRIU itself writes in the program afterwards is not among it, and is no change of the program's.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Assist, DescribedProcess, LENGTH};
use crate::page_scan::{self, Region};

/// More stretches than these are not kept.
pub(super) const MOST: usize = 32_768;

impl Assist {
    /// Room for stretches, from `at` on; none if there is none.
    pub(super) fn room_for_written(at: usize) -> Option<usize> {
        let at = at.next_multiple_of(align_of::<Region>());
        (at + MOST * size_of::<Region>() <= LENGTH).then_some(at)
    }

    /// The program stands still: asks about the pages of all processes that were described.
    pub fn look_at_pages(self: &Arc<Self>) {
        let shared = self.shared();
        for (index, slot) in shared.areas.iter().enumerate() {
            let pid = slot.pid.load(Ordering::Acquire);
            if pid == 0 {
                continue;
            }
            let hides = shared.hides_unwritten.load(Ordering::Relaxed) != 0;
            let finds_written = hides && slot.written.load(Ordering::Relaxed) != 0;
            slot.has_no_guards.begin();
            if finds_written {
                slot.is_written_known.begin();
            }
            let assist = self.clone();
            std::thread::spawn(move || {
                let slot = &assist.shared().areas[index];
                // Of guards CRIU asks first.
                let has_guards = pagemap(pid).and_then(|pagemap| page_scan::has_guards(&pagemap));
                slot.has_no_guards.end(has_guards.is_ok_and(|has_guards| !has_guards));
                if finds_written {
                    slot.is_written_known.end(assist.find_written(slot, pid));
                }
            });
        }
    }

    /// Whether that was found, and is written down.
    fn find_written(&self, slot: &DescribedProcess, pid: u32) -> bool {
        let at = slot.written.load(Ordering::Relaxed) as usize;
        // SAFETY: within the mapping by `room_for_written`, aligned, and nobody reads it before it is said to be known.
        let room = unsafe {
            std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(at).cast::<Region>(), MOST)
        };
        let found = pagemap(pid).and_then(|pagemap| page_scan::find_written(&pagemap, room));
        let count = found.ok().flatten();
        slot.written_count.store(count.unwrap_or(0) as u64, Ordering::Relaxed);
        count.is_some()
    }
}

fn pagemap(pid: u32) -> io::Result<File> {
    File::open(format!("/proc/{pid}/pagemap"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assist::fake_criu::Subject;

    #[test]
    fn pages_and_guards_of_processes_that_stand_are_found() {
        let guarded = "import ctypes, mmap\nm = mmap.mmap(-1, 1 << 16)\nat = ctypes.addressof(ctypes.c_char.from_buffer(m))\n\
                       guards = ctypes.CDLL(None).madvise(ctypes.c_void_p(at), ctypes.c_size_t(8192), 102) == 0";
        let (plain, guarded) = (Subject::stopped(), Subject::beginning_with(guarded).stop());
        let assist = Arc::new(Assist::new(true).unwrap());
        assist.describe(vec![plain.pid(), guarded.pid()]);
        assist.look_at_pages();
        for subject in [&plain, &guarded] {
            let pid = subject.pid() as u32;
            let slot =
                assist.shared().areas.iter().find(|slot| slot.pid.load(Ordering::Relaxed) == pid).unwrap();
            // Nothing of it is protected, so all of it counts as written.
            assert!(slot.is_written_known.wait() && slot.written_count.load(Ordering::Relaxed) > 2);
            let has_guards = page_scan::has_guards(&pagemap(pid).unwrap()).unwrap();
            assert_eq!(slot.has_no_guards.wait(), !has_guards);
        }
        assert!(!page_scan::has_guards(&pagemap(plain.pid() as u32).unwrap()).unwrap());
    }
}
