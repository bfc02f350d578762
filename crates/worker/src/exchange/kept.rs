//! Memory of arrays that are over, kept for a moment: the next array of that size goes there.
//!
//! Making memory, giving it to others and mapping it there takes a millisecond, and copying a small array some microseconds.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long it is kept after its last use.
pub(super) const KEPT: Duration = Duration::from_secs(1);
/// The part of a GPU's memory that may be kept so by a program.
const PART: u64 = 64;
const MOST: usize = 4;

/// Memory that is mapped here, and that others may have too.
pub(super) struct Block {
    pub device: usize,
    pub at: u64,
    pub room: u64,
    /// The memory's, for those who hand on.
    pub name: String,
    /// Of memory that arrays are put in: the array that it has, and a descriptor for those who take it.
    pub given: Option<(String, OwnedFd)>,
    pub since: Instant,
}

/// The first was used longest ago.
#[derive(Default)]
pub(super) struct Blocks(Vec<Block>);

impl Blocks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The arrays that were put in memory of this room.
    pub(super) fn arrays(&self, device: usize, room: u64) -> Vec<String> {
        let fits = |block: &&Block| (block.device, block.room) == (device, room);
        self.0.iter().filter(fits).filter_map(|block| Some(block.given.as_ref()?.0.clone())).collect()
    }

    pub(super) fn take(&mut self, is: impl Fn(&Block) -> bool) -> Option<Block> {
        Some(self.0.remove(self.0.iter().position(is)?))
    }

    /// Keeps one more; those that are to go for it, or itself. The GPU has so many bytes.
    pub(super) fn keep(&mut self, block: Block, memory: u64) -> Vec<Block> {
        self.0.push(block);
        let mut left = self.0.iter().map(|block| block.room).sum::<u64>();
        let mut go = 0;
        while self.0.len() - go > MOST || left > memory / PART {
            left -= self.0[go].room;
            go += 1;
        }
        self.0.drain(..go).collect()
    }

    pub(super) fn take_unused(&mut self) -> Vec<Block> {
        self.0.extract_if(.., |block| block.since.elapsed() >= KEPT).collect()
    }

    pub(super) fn retain(&mut self, is: impl Fn(&Block) -> bool) {
        self.0.retain(is);
    }

    pub(super) fn take_all(&mut self) -> Vec<Block> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: u64 = 64 << 20;

    fn block(at: u64, room: u64) -> Block {
        Block { device: 0, at, room, name: at.to_string(), given: None, since: Instant::now() }
    }

    fn gone(blocks: &mut Blocks, block: Block) -> Vec<u64> {
        blocks.keep(block, GPU).iter().map(|block| block.at).collect()
    }

    #[test]
    fn what_was_used_longest_ago_goes_and_what_is_too_large_is_not_kept() {
        let mut blocks = Blocks::default();
        assert!(gone(&mut blocks, block(1, 400 << 10)).is_empty());
        assert!(gone(&mut blocks, block(2, 400 << 10)).is_empty());
        assert_eq!(gone(&mut blocks, block(3, 400 << 10)), [1]);
        assert_eq!(gone(&mut blocks, block(4, 2 << 20)), [2, 3, 4]);
        for at in 5..9 {
            assert!(gone(&mut blocks, block(at, 1)).is_empty());
        }
        assert_eq!(gone(&mut blocks, block(9, 1)), [5]);
        assert_eq!(blocks.take(|block| block.name == "7").unwrap().at, 7);
        assert!(blocks.take(|block| block.name == "7").is_none());
    }
}
