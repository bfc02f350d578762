//! What a memory pool says that it has: a driver's takes memory from the device in steps, and keeps what is freed as far as its
//! release threshold says. It gives the rest back when the program waits for the device; here that is taken to have been done.

/// In steps of so many bytes a driver's pool takes memory.
const STEP: u64 = 32 << 20;

#[derive(Default)]
pub struct PoolMemory {
    /// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
    pub threshold: u64,
    pub used: u64,
    pub used_high: u64,
    pub reserved_high: u64,
    /// The most that it has taken since it was trimmed.
    taken: u64,
}

impl PoolMemory {
    pub fn take(&mut self, bytes: u64) {
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        self.taken = self.taken.max(self.least());
        self.reserved_high = self.reserved_high.max(self.reserved());
    }

    pub fn free(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Keeps so many bytes at least, if it has them.
    pub fn trim(&mut self, keep: u64) {
        self.taken = self.least().max(self.taken.min(keep).next_multiple_of(STEP));
    }

    pub fn reserved(&self) -> u64 {
        self.least().max(self.taken.min(self.threshold))
    }

    /// What has room for all that is in use.
    fn least(&self) -> u64 {
        self.used.next_multiple_of(STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_steps_and_keeps_as_much_as_its_threshold_says() {
        let mut pool = PoolMemory::default();
        pool.take(512);
        assert_eq!((pool.used, pool.reserved()), (512, STEP));
        pool.take(STEP);
        pool.free(STEP);
        assert_eq!((pool.reserved(), pool.reserved_high, pool.used_high), (STEP, 2 * STEP, STEP + 512));
        pool.threshold = u64::MAX;
        assert_eq!(pool.reserved(), 2 * STEP);
        pool.trim(0);
        assert_eq!(pool.reserved(), STEP);
        pool.free(512);
        assert_eq!(pool.reserved(), STEP);
        pool.trim(u64::MAX);
        assert_eq!((pool.used, pool.reserved()), (0, STEP));
        pool.trim(0);
        assert_eq!((pool.used, pool.reserved()), (0, 0));
    }
}
