//! How long copies take at the set bandwidth: a copy engine for each direction, which does one thing after the other.
//!
//! Where several processes have a GPU together they have its engines together too, in a file of the `common` directory. Each
//! process has a part of a copy made at a time, as a real GPU goes from context to context.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

/// What a sleep overshot is made up for by the next copy, up to so much; idle time is not.
const OVERSHOT: Duration = Duration::from_millis(2);
/// So long a process has an engine at a time that others have too.
const TURN: Duration = Duration::from_millis(1);
/// How soon it is noticed that work is cancelled.
const LOOK: Duration = Duration::from_millis(20);

/// When each engine is next free, in nanoseconds of the machine's clock: up, down.
type FreeAt = [AtomicU64; 2];

pub(crate) struct CopyEngines {
    /// Bytes a second; 0: no limit.
    bandwidth: u64,
    own: FreeAt,
    common: Option<MmapRaw>,
}

impl CopyEngines {
    /// Of the device of this number in the machine; with a directory, those that all processes have which name it.
    pub fn open(bandwidth: u64, common: Option<&Path>, device: u32) -> io::Result<CopyEngines> {
        let common = common.filter(|_| bandwidth > 0).map(|directory| map(directory, device)).transpose()?;
        Ok(CopyEngines { bandwidth, own: FreeAt::default(), common })
    }

    /// Waits until an engine has copied so many bytes that it was given `since` then, or the work is cancelled.
    pub fn pass(&self, engine: usize, bytes: u64, since: u64, is_cancelled: impl Fn() -> bool) {
        if self.bandwidth == 0 {
            return;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / self.bandwidth as f64);
        let turn = if self.common.is_some() { TURN } else { takes };
        let (mut left, mut since) = (takes, since);
        while !left.is_zero() && !is_cancelled() {
            let part = left.min(turn);
            left -= part;
            let until = self.take(engine, part, since);
            loop {
                let wait = until.saturating_sub(nanoseconds());
                if wait == 0 || is_cancelled() {
                    break;
                }
                std::thread::sleep(Duration::from_nanos(wait).min(LOOK));
            }
            since = until;
        }
    }

    /// Takes an engine for so long: until when that is.
    fn take(&self, engine: usize, takes: Duration, since: u64) -> u64 {
        let earliest = since.saturating_sub(takes.min(OVERSHOT).as_nanos() as u64);
        let after = |free_at: u64| free_at.max(earliest) + takes.as_nanos() as u64;
        let word = &self.free_at()[engine];
        let taken = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free_at| Some(after(free_at)));
        after(taken.unwrap_or_else(|free_at| free_at))
    }

    fn free_at(&self) -> &FreeAt {
        match &self.common {
            // SAFETY: the mapping is page-aligned, as long as that, and lives as long as `self`; any bytes are valid words.
            Some(mapping) => unsafe { &*mapping.as_mut_ptr().cast::<FreeAt>() },
            None => &self.own,
        }
    }
}

fn map(directory: &Path, device: u32) -> io::Result<MmapRaw> {
    std::fs::create_dir_all(directory)?;
    let place = directory.join(format!("link-{device}"));
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(place)?;
    let bytes = size_of::<FreeAt>();
    file.set_len(bytes as u64)?;
    MmapOptions::new().len(bytes).map_raw(&file)
}

/// Of the clock that all processes of the machine have.
pub(crate) fn nanoseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to one valid structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_have_an_engine_together_have_no_more_than_its_bandwidth() {
        let directory = std::env::temp_dir().join(format!("rekindle-engines-{}", std::process::id()));
        let open = || CopyEngines::open(100 << 20, Some(&directory), 0).unwrap();
        let (one, other) = (open(), open());
        let began = nanoseconds();
        std::thread::scope(|scope| {
            scope.spawn(|| one.pass(0, 5 << 20, nanoseconds(), || false));
            scope.spawn(|| other.pass(0, 5 << 20, nanoseconds(), || false));
        });
        let took = Duration::from_nanos(nanoseconds() - began);
        assert!(took > Duration::from_millis(95), "{took:?}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
