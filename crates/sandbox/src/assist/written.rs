//! What of a process's pages was written to since they were protected, and whether guards are among them.
//!
//! To find that, the kernel walks over all page tables of a process, some milliseconds for one of some gigabytes. Threads of
//! ours ask as soon as the program stands still, while CRIU looks at sockets and areas. What they do not know yet CRIU asks
//! itself. What CRIU itself writes in the program afterwards is not among it, and is no change of the program's.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Assist, LENGTH};
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
            if slot.written.load(Ordering::Relaxed) != 0
                && shared.hides_unwritten.load(Ordering::Relaxed) != 0
            {
                let assist = self.clone();
                std::thread::spawn(move || assist.find_written(index, pid));
            }
            let assist = self.clone();
            std::thread::spawn(move || {
                let has_guards = pagemap(pid).and_then(|pagemap| page_scan::has_guards(&pagemap));
                // What cannot be asked, CRIU will say.
                if has_guards.is_ok_and(|has_guards| !has_guards) {
                    assist.shared().areas[index].has_no_guards.store(1, Ordering::Release);
                }
            });
        }
    }

    fn find_written(&self, index: usize, pid: u32) {
        let slot = &self.shared().areas[index];
        let at = slot.written.load(Ordering::Relaxed) as usize;
        // SAFETY: within the mapping by `room_for_written`, aligned, and nobody reads it before it is said to be known.
        let room = unsafe {
            std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(at).cast::<Region>(), MOST)
        };
        if let Ok(Some(count)) = pagemap(pid).and_then(|pagemap| page_scan::find_written(&pagemap, room)) {
            slot.written_count.store(count as u64, Ordering::Relaxed);
            slot.is_written_known.store(1, Ordering::Release);
        }
    }
}

fn pagemap(pid: u32) -> io::Result<File> {
    File::open(format!("/proc/{pid}/pagemap"))
}
