//! Free ranges of an address space (or of a slab), handed out next-fit.

use std::collections::BTreeMap;

/// Ranges neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    free: BTreeMap<u64, u64>,
    cursor: u64,
}

impl Space {
    pub(crate) fn new(start: u64, bytes: u64) -> Space {
        let mut space = Space::default();
        space.give(start, bytes);
        space
    }

    /// Takes `bytes` at a multiple of `alignment` (a power of two), from where the last search ended on.
    pub(crate) fn take(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let fit = |(start, length): (&u64, &u64)| {
            let at = start.checked_next_multiple_of(alignment)?;
            (at.checked_add(bytes)? <= start + length).then_some(at)
        };
        let at = self
            .free
            .range(self.cursor..)
            .find_map(fit)
            .or_else(|| self.free.range(..self.cursor).find_map(fit))?;
        self.take_at(at, bytes).then_some(at)
    }

    /// Takes exactly this range; false if some of it is not free.
    pub(crate) fn take_at(&mut self, at: u64, bytes: u64) -> bool {
        let Some((&start, &length)) = self.free.range(..=at).next_back() else { return false };
        let (Some(end), held) = (at.checked_add(bytes), start + length) else { return false };
        if end > held || bytes == 0 {
            return false;
        }
        self.free.remove(&start);
        if start < at {
            self.free.insert(start, at - start);
        }
        if end < held {
            self.free.insert(end, held - end);
        }
        self.cursor = end;
        true
    }

    /// Gives a range back, joining it with its neighbours.
    pub(crate) fn give(&mut self, at: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (mut start, mut end) = (at, at + bytes);
        if let Some((&before, &length)) = self.free.range(..at).next_back()
            && before + length == at
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
    }

    /// Bytes that are free.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_next_range_is_taken_before_a_freed_one_is_reused() {
        let mut space = Space::new(0, 100);
        assert_eq!(space.take(40, 1), Some(0));
        assert_eq!(space.take(40, 1), Some(40));
        space.give(0, 40);
        assert_eq!(space.take(20, 1), Some(80));
        assert_eq!(space.take(20, 1), Some(0));
        assert_eq!(space.take(21, 1), None);
        assert!(!space.take_at(10, 20));
        assert!(space.take_at(25, 15));
    }

    proptest! {
        #[test]
        fn what_is_taken_never_overlaps_and_all_comes_back(
            steps in proptest::collection::vec((1u64..5000, 0u32..10, any::<bool>()), 1..200)
        ) {
            let mut space = Space::new(1 << 20, 1 << 16);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (bytes, shift, give) in steps {
                if give && !held.is_empty() {
                    let (at, bytes) = held.swap_remove(bytes as usize % held.len());
                    space.give(at, bytes);
                } else if let Some(at) = space.take(bytes, 1 << shift) {
                    prop_assert_eq!(at % (1 << shift), 0);
                    prop_assert!(held.iter().all(|(other, length)| at + bytes <= *other || other + length <= at));
                    held.push((at, bytes));
                }
                prop_assert_eq!(space.free_bytes() + held.iter().map(|h| h.1).sum::<u64>(), 1 << 16);
            }
            for (at, bytes) in held {
                space.give(at, bytes);
            }
            prop_assert_eq!(space.free.len(), 1);
        }
    }
}
