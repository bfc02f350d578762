//! What the kernel says of a process's areas, read before the process stands still.
//!
//! CRIU reads `smaps` for the attributes of areas. The kernel looks at each page of the process for it, which takes 20 to 40
//! ms where a program has some gigabytes. Those attributes change seldom, and where areas are is in `maps`, of which no page
//! is looked at. So CRIU is given what was read before, if `maps` says the same, and what it was given is compared while it
//! goes on with its work.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::atomic::Ordering;

use super::{Assist, LENGTH, Shared, written};
use crate::page_scan::Region;
use crate::process::own_bytes;

const FLAGS: &[u8] = b"VmFlags:";
/// What CRIU does not read: protection by us, and what was written since somebody looked.
const UNREAD: [&[u8]; 5] = [b"um", b"uw", b"ui", b"sd", b"ac"];

/// The lines of `smaps` that CRIU reads: of each area where it is, and its attributes.
fn describe(pid: i32) -> io::Result<Vec<u8>> {
    let text = fs::read(format!("/proc/{pid}/smaps"))?;
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    Ok(lines.filter(|line| line.starts_with(FLAGS) || is_area(line)).flatten().copied().collect())
}

/// Other lines have a name and a colon first.
fn is_area(line: &[u8]) -> bool {
    let first = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    first.contains(&b'-') && !first.ends_with(b":")
}

/// Whether areas that were described have other attributes now, of those that CRIU reads. Areas that are new are CRIU's own,
/// or what it has split.
fn differs(described: &[u8], now: &[u8]) -> bool {
    let now: HashMap<&[u8], &[u8]> = areas(now).collect();
    areas(described).any(|(area, flags)| now.get(area).is_some_and(|now| !words(flags).eq(words(now))))
}

/// The lines of each area.
pub(super) fn areas(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    std::iter::from_fn(move || Some((lines.next()?, lines.next()?)))
}

fn words(flags: &[u8]) -> impl Iterator<Item = &[u8]> {
    flags.split(|byte| *byte == b' ').filter(|word| !word.is_empty() && !UNREAD.contains(word))
}

impl Assist {
    /// Describes the areas of processes, which may run, of those first that have most. One that cannot be read is not
    /// described.
    pub fn describe(&self, mut pids: Vec<i32>) {
        pids.sort_by_cached_key(|pid| Reverse(own_bytes(*pid)));
        let mut at = size_of::<Shared>().next_multiple_of(4096);
        for (slot, pid) in self.shared().areas.iter().zip(pids) {
            let Ok(text) = describe(pid) else { continue };
            if text.is_empty() || at + text.len() > LENGTH {
                continue;
            }
            // SAFETY: within the mapping, in which nobody reads it before its process is named below.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), self.memory.as_mut_ptr().add(at), text.len());
            }
            slot.at.store(at as u64, Ordering::Relaxed);
            slot.length.store(text.len() as u64, Ordering::Relaxed);
            at = self.describe_links(slot, &text, at + text.len());
            if let Some(room) = Self::room_for_written(at) {
                slot.written.store(room as u64, Ordering::Relaxed);
                at = room + written::MOST * size_of::<Region>();
            }
            slot.pid.store(pid as u32, Ordering::Release);
        }
    }

    /// The program stands still: which of its processes are not as they were described.
    pub fn changed(&self) -> Vec<i32> {
        let described = self.shared().areas.iter().filter(|slot| slot.pid.load(Ordering::Relaxed) != 0);
        let mut changed = Vec::new();
        for slot in described {
            let (at, length) = (slot.at.load(Ordering::Relaxed), slot.length.load(Ordering::Relaxed));
            let pid = slot.pid.load(Ordering::Relaxed) as i32;
            // SAFETY: written by `describe`, within the mapping, and by nobody since.
            let text =
                unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(at as usize), length as usize) };
            if describe(pid).is_ok_and(|now| differs(text, &now)) {
                changed.push(pid);
            }
        }
        changed
    }

    /// The processes of which CRIU was given what was read before.
    pub fn known(&self) -> usize {
        self.shared().areas.iter().filter(|slot| slot.is_used.load(Ordering::Relaxed) != 0).count()
    }

    /// Fails if CRIU was given what was not so, of one of those that have [changed](Self::changed), or of any if it is not
    /// known which have.
    pub fn check(&self, changed: Option<&[i32]>) -> Result<(), String> {
        let is_wrong = |pid: u32| changed.is_none_or(|changed| changed.contains(&(pid as i32)));
        let mut used = self.shared().areas.iter().filter(|slot| slot.is_used.load(Ordering::Acquire) != 0);
        match used.find(|slot| is_wrong(slot.pid.load(Ordering::Relaxed))) {
            None => Ok(()),
            Some(slot) => Err(format!(
                "process {} gave its memory other attributes in the very moment in which it was brought to a stand; take the \
                 image again",
                slot.pid.load(Ordering::Relaxed)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_and_attributes_are_what_is_read_and_compared() {
        let own = describe(std::process::id() as i32).unwrap();
        let text = String::from_utf8_lossy(&own);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() > 20 && lines.len().is_multiple_of(2));
        assert!(lines.chunks(2).all(|pair| is_area(pair[0].as_bytes()) && pair[1].starts_with("VmFlags:")));
        let (plain, protected) =
            (b"1000-2000 rw-p\nVmFlags: rd wr sd\n", b"1000-2000 rw-p\nVmFlags: rd wr um uw\n");
        assert!(!differs(plain, protected));
        assert!(differs(plain, b"1000-2000 rw-p\nVmFlags: rd wr hg\n"));
        let more = b"1000-2000 rw-p\nVmFlags: rd wr\n3000-4000 r-xs /memfd:CRIUMFD\nVmFlags: rd ex\n";
        assert!(!differs(plain, more));
    }
}
