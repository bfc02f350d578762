//! Memory that a process shares with devices, of which the kernel notes from some moment on what the process writes there.
//!
//! Only writes of this process are noted: other processes must not have it mapped, and what devices write past the kernel's page
//! tables is theirs.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::PoisonError;

use super::PreCopy;
use crate::page_scan;
use crate::process::maps;
use crate::protection::Protection;

/// It is noted for as long as this is there.
#[derive(Debug)]
pub struct FollowedMemory {
    host_pid: i32,
    protection: Protection,
    pagemap: File,
    spans: Vec<Range<u64>>,
    /// The files that it is in, by number and name.
    files: Vec<(u64, Vec<u8>)>,
}

impl PreCopy {
    /// Has what a process writes to these areas be noted from now on; none where that cannot be done, or where another of the
    /// program's processes (`all`, our pids) has their files mapped.
    pub fn follow(
        &self,
        host_pid: i32,
        spans: Vec<Range<u64>>,
        all: &[i32],
    ) -> io::Result<Option<FollowedMemory>> {
        let Some(watched) = self.processes.get(&host_pid) else { return Ok(None) };
        let pagemap = File::open(format!("/proc/{host_pid}/pagemap"))?;
        let areas = maps::of(host_pid)?;
        let within = |area: &&maps::Area| spans.iter().any(|span| overlap(span, &area.span));
        let files = areas.iter().filter(within).map(|area| (area.inode, area.name.clone())).collect();
        *watched.followed.lock().unwrap_or_else(PoisonError::into_inner) = in_order(&spans);
        let followed =
            FollowedMemory { host_pid, protection: watched.protection.try_clone()?, pagemap, spans, files };
        Ok((followed.protect()? && !followed.is_elsewhere(all)?).then_some(followed))
    }
}

impl FollowedMemory {
    /// Whether all of it could be protected.
    fn protect(&self) -> io::Result<bool> {
        for span in &self.spans {
            self.protection.cover(span)?;
            if !page_scan::protect_all(&self.pagemap, span)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether nothing has been written there since, as far as can be told. `all`: the program's processes now.
    pub fn is_unwritten(&self, all: &[i32]) -> io::Result<bool> {
        for span in &self.spans {
            if !page_scan::is_unwritten(&self.pagemap, span)? {
                return Ok(false);
            }
        }
        Ok(!self.is_elsewhere(all)?)
    }

    /// Whether it is mapped anywhere else, by the process itself or by others.
    fn is_elsewhere(&self, all: &[i32]) -> io::Result<bool> {
        let is_other = |pid: i32, area: &maps::Area| {
            self.files.iter().any(|(inode, name)| (*inode, &name[..]) == (area.inode, &area.name[..]))
                && (pid != self.host_pid || !self.spans.iter().any(|span| overlap(span, &area.span)))
        };
        for pid in all {
            match maps::of(*pid) {
                Ok(areas) if areas.iter().any(|area| is_other(*pid, area)) => return Ok(true),
                Ok(_) => {}
                // It has ended.
                Err(error) if error.kind() == io::ErrorKind::NotFound && *pid != self.host_pid => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

impl Drop for FollowedMemory {
    fn drop(&mut self) {
        for span in &self.spans {
            // A process that has ended has no memory any more.
            let _ = self.protection.uncover(span);
        }
    }
}

fn in_order(spans: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut spans = spans.to_vec();
    spans.sort_unstable_by_key(|span| span.start);
    spans
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
