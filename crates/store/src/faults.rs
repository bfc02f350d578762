//! Faults on purpose, so that tests of the whole system can meet a full disk or a sudden death in
//! every phase. Without a fault set, the cost is one comparison for each file-system change.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};

/// Names faults, with commas between. `disk:BYTES` is of interest here: what a process may write to its store before the disk
/// counts as full.
const VARIABLE: &str = "REKINDLE_FAULT";

/// The faults that a store meets; none by default.
#[derive(Debug, Default)]
pub struct Faults {
    disk_bytes: Option<AtomicI64>,
    steps: Option<AtomicI64>,
}

impl Faults {
    /// A disk that is full after so many bytes more (each new file or directory takes a block).
    pub fn disk_full_after(bytes: u64) -> Faults {
        Faults { disk_bytes: Some(AtomicI64::new(bytes.min(i64::MAX as u64) as i64)), steps: None }
    }

    /// A writer that gets no further than so many changes to the file system, as if killed: all
    /// that it tries afterwards fails too, its own cleaning up included.
    pub fn dead_after(steps: u64) -> Faults {
        Faults { disk_bytes: None, steps: Some(AtomicI64::new(steps.min(i64::MAX as u64) as i64)) }
    }

    /// What the environment asks for, if anything.
    pub fn from_environment() -> Option<Faults> {
        disk_bytes(&std::env::var(VARIABLE).ok()?).map(Faults::disk_full_after)
    }

    /// To be called before each change, with the bytes that it takes.
    pub(crate) fn step(&self, bytes: u64) -> io::Result<()> {
        if let Some(left) = &self.steps
            && left.fetch_sub(1, Ordering::Relaxed) <= 0
        {
            return Err(io::Error::other("this writer was stopped by an injected fault"));
        }
        if let Some(left) = &self.disk_bytes
            && bytes > 0
            && left.fetch_sub(bytes as i64, Ordering::Relaxed) < bytes as i64
        {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(())
    }
}

fn disk_bytes(text: &str) -> Option<u64> {
    text.split(',').find_map(|entry| entry.trim().strip_prefix("disk:")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_one_fault_of_several() {
        assert_eq!(disk_bytes("frozen:hang, disk:20000"), Some(20000));
        assert_eq!(disk_bytes("disk:much,diskette:5"), None);
    }
}
