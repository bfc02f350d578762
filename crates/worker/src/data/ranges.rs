//! Which bytes of an object are there and not copied yet: told by one thread, in any order, and taken by others in long runs.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CuResult};
use rekindle_device::Result;

/// Bytes are taken in whole cells. The driver knows pages, and memory has large ones of this size.
pub(super) const CELL: u64 = 2 << 20;

pub(super) struct Ranges {
    bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// How many bytes of each cell are still to come, and of all.
    missing: Vec<u64>,
    left: u64,
    /// Cells that are there and not taken: the first of each run, and the one behind its last.
    ready: BTreeMap<u64, u64>,
    /// There will be no more.
    ended: bool,
    failed: Option<CuResult>,
}

impl Ranges {
    /// Of an object of so many bytes.
    pub(super) fn new(bytes: u64) -> Ranges {
        let missing = (0..bytes.div_ceil(CELL)).map(|cell| CELL.min(bytes - cell * CELL)).collect();
        let state = State { missing, left: bytes, ready: BTreeMap::new(), ended: false, failed: None };
        Ranges { bytes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// These bytes are there, and were not told of before. An error is why those before could not be copied.
    pub(super) fn add(&self, offset: u64, bytes: u64) -> Result<()> {
        let mut state = self.state();
        if let Some(code) = state.failed {
            return Err(code);
        }
        let end =
            offset.checked_add(bytes).filter(|end| *end <= self.bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        for cell in offset / CELL..end.div_ceil(CELL) {
            let came = end.min((cell + 1) * CELL) - offset.max(cell * CELL);
            let missing = &mut state.missing[cell as usize];
            *missing = missing.checked_sub(came).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            state.left -= came;
            if state.missing[cell as usize] == 0 {
                state.put(cell, cell + 1);
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// What was taken is to be taken by somebody else.
    pub(super) fn give_back(&self, (offset, bytes): (u64, u64)) {
        self.state().put(offset / CELL, (offset + bytes).div_ceil(CELL));
        self.changed.notify_all();
    }

    pub(super) fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    pub(super) fn fail(&self, code: CuResult) {
        let mut state = self.state();
        state.failed.get_or_insert(code);
        state.ready.clear();
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn failed(&self) -> Option<CuResult> {
        self.state().failed
    }

    /// At most so many bytes of the longest run, if something is there.
    pub(super) fn take_now(&self, most: u64) -> Option<(u64, u64)> {
        self.state().take(1, most / CELL).map(|run| self.bytes_of(run))
    }

    /// As [`take_now`](Self::take_now), once there are so many in a run or no more come; none if there is nothing any more.
    pub(super) fn take(&self, least: u64, most: u64) -> Option<(u64, u64)> {
        let mut state = self.state();
        loop {
            let no_more = state.ended || state.left == 0 || state.failed.is_some();
            let least = if no_more { 1 } else { least / CELL };
            if let Some(run) = state.take(least, most / CELL) {
                return Some(self.bytes_of(run));
            }
            if no_more {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn bytes_of(&self, (first, behind): (u64, u64)) -> (u64, u64) {
        let start = first * CELL;
        (start, self.bytes.min(behind * CELL) - start)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Makes one run of these cells and those beside them.
    fn put(&mut self, mut first: u64, mut behind: u64) {
        if let Some((&before, _)) = self.ready.range(..first).next_back().filter(|(_, end)| **end == first) {
            self.ready.remove(&before);
            first = before;
        }
        if let Some(end) = self.ready.remove(&behind) {
            behind = end;
        }
        self.ready.insert(first, behind);
    }

    fn take(&mut self, least: u64, most: u64) -> Option<(u64, u64)> {
        let longest = self.ready.iter().max_by_key(|(first, behind)| (*behind - *first, u64::MAX - *first));
        let (first, behind) = longest.map(|(first, behind)| (*first, *behind))?;
        if behind - first < least {
            return None;
        }
        self.ready.remove(&first);
        let end = behind.min(first + most);
        if end < behind {
            self.ready.insert(end, behind);
        }
        Some((first, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_taken_in_long_runs_and_once() {
        let bytes = 10 * CELL + 5;
        let ranges = Ranges::new(bytes);
        assert_eq!(ranges.take_now(CELL), None);
        // Cells that are there in part are not.
        ranges.add(CELL / 2, CELL).unwrap();
        assert_eq!(ranges.take_now(CELL), None);
        ranges.add(CELL + CELL / 2, CELL / 2 + 2 * CELL).unwrap();
        ranges.add(6 * CELL, CELL).unwrap();
        ranges.add(7 * CELL, CELL).unwrap();
        assert_eq!(ranges.take_now(2 * CELL), Some((CELL, 2 * CELL)));
        assert_eq!(ranges.take(2 * CELL, 8 * CELL), Some((6 * CELL, 2 * CELL)));
        ranges.give_back((CELL, 2 * CELL));
        assert_eq!(ranges.take(3 * CELL, 8 * CELL), Some((CELL, 3 * CELL)));
        ranges.add(4 * CELL, 2 * CELL).unwrap();
        ranges.add(8 * CELL, 2 * CELL + 5).unwrap();
        ranges.add(0, CELL / 2).unwrap();
        // All is there, so that nobody waits for longer runs.
        assert_eq!(ranges.take(8 * CELL, 8 * CELL), Some((8 * CELL, 2 * CELL + 5)));
        assert_eq!(ranges.take(8 * CELL, 8 * CELL), Some((4 * CELL, 2 * CELL)));
        assert_eq!(ranges.take(8 * CELL, 8 * CELL), Some((0, CELL)));
        assert_eq!(ranges.take(8 * CELL, 8 * CELL), None);
    }

    #[test]
    fn bytes_that_there_are_none_of_are_refused() {
        let ranges = Ranges::new(CELL);
        assert!(ranges.add(0, CELL + 1).is_err() && ranges.add(u64::MAX, 2).is_err());
        ranges.add(0, 1).unwrap();
        assert!(ranges.add(0, CELL).is_err());
    }

    #[test]
    fn after_a_failure_there_is_nothing_to_take() {
        let ranges = Ranges::new(2 * CELL);
        ranges.add(0, CELL).unwrap();
        ranges.fail(CUDA_ERROR_INVALID_VALUE);
        assert_eq!(ranges.take(CELL, CELL), None);
        assert_eq!(
            (ranges.add(CELL, CELL), ranges.failed()),
            (Err(CUDA_ERROR_INVALID_VALUE), Some(CUDA_ERROR_INVALID_VALUE))
        );
    }
}
