//! Where the driver has put GPU memory: what a process has mapped that it had not before.
//!
//! The kernel joins neighbours, so that may be a part of an area.

use std::collections::HashMap;
use std::ops::Range;

use rekindle_sandbox::process::{maps, private_memory};

use crate::message::Area;

/// What is smaller is not worth a mapping of its own, and may be anybody's.
const LEAST: u64 = 16 << 20;

/// The private anonymous memory of processes before the driver adds to it.
#[derive(Clone)]
pub struct AreasBefore(HashMap<i32, Vec<Range<u64>>>);

impl AreasBefore {
    pub fn of(pids: &[i32]) -> AreasBefore {
        AreasBefore(pids.iter().map(|pid| (*pid, memory(*pid))).collect())
    }

    /// What has come since.
    pub fn new_areas(&self) -> Vec<Area> {
        let mut out = Vec::new();
        for (&pid, before) in &self.0 {
            let new = memory(pid).into_iter().flat_map(|now| without(now, before));
            let large = new.filter(|span| span.end - span.start >= LEAST);
            out.extend(large.map(|span| Area { pid, start: span.start, end: span.end }));
        }
        out
    }

    /// These areas are no news any more.
    pub fn add(&mut self, areas: &[Area]) {
        for area in areas {
            let known = self.0.entry(area.pid).or_default();
            known.push(area.start..area.end);
            known.sort_by_key(|span| span.start);
        }
    }
}

/// The parts of `span` that are in none of the ordered `others`.
fn without(span: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut out, mut from) = (Vec::new(), span.start);
    for other in others.iter().filter(|other| other.start < span.end && span.start < other.end) {
        out.push(from..other.start.max(from));
        from = other.end;
    }
    out.push(from..span.end.max(from));
    out
}

/// A process that has ended has none.
fn memory(pid: i32) -> Vec<Range<u64>> {
    private_memory(&maps::if_there(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_is_cut_out() {
        let found = |others: &[(u64, u64)]| {
            let others: Vec<_> = others.iter().map(|other| other.0..other.1).collect();
            let parts = without(10..100, &others).into_iter().filter(|part| !part.is_empty());
            parts.map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), [(10, 100)]);
        assert_eq!(found(&[(0, 20), (90, 200)]), [(20, 90)]);
        assert_eq!(found(&[(0, 10), (30, 40), (50, 60), (100, 110)]), [(10, 30), (40, 50), (60, 100)]);
        assert_eq!(found(&[(10, 100)]), []);
        assert_eq!(found(&[(0, 200)]), []);
    }

    #[test]
    fn what_is_mapped_later_is_new() {
        let pid = std::process::id() as i32;
        let before = AreasBefore::of(&[pid]);
        let bytes = 3 * LEAST as usize;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        let new = before.new_areas();
        let holds = |area: &Area| area.start <= at as u64 && at as u64 + bytes as u64 <= area.end;
        assert!(new.iter().any(holds), "{new:?}");
        // SAFETY: unmaps what was mapped above and is not used.
        unsafe { libc::munmap(at, bytes) };
    }
}
