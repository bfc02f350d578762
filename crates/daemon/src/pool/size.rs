//! How many workers are to wait for each GPU.

use std::time::Duration;

/// How many workers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// At least, for each GPU as `--gpu` names it; none wait at all if it is 0.
    pub per_gpu: usize,
    /// For all GPUs together; those used last come first.
    pub most: usize,
    /// For so long as many wait as were taken at once.
    pub window: Duration,
}

/// Why workers of a GPU are to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    /// So many always are.
    pub least: usize,
    /// So many were taken at once of late.
    pub recent: usize,
    /// So many programs sleep for which a context is kept.
    pub asleep: usize,
    /// So many processes with a GPU has an image that was made or restored within a day.
    pub processes: usize,
}

impl Reasons {
    fn wanted(&self) -> usize {
        self.least.max(self.recent).max(self.asleep).max(self.processes)
    }
}

/// How many are to wait for each GPU, if at most so many do together: for each the least, before any has more. The first
/// GPUs come first.
pub fn share_out(gpus: &[Reasons], most: usize) -> Vec<usize> {
    let mut left = most;
    let mut give = |wanted: usize| {
        let given = wanted.min(left);
        left -= given;
        given
    };
    let least: Vec<usize> = gpus.iter().map(|gpu| give(gpu.least)).collect();
    gpus.iter().zip(least).map(|(gpu, least)| least + give(gpu.wanted() - gpu.least)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(least: usize, recent: usize, asleep: usize) -> Reasons {
        Reasons { least, recent, asleep, processes: 0 }
    }

    #[test]
    fn as_many_wait_as_the_strongest_reason_says() {
        assert_eq!(share_out(&[gpu(1, 0, 0)], 8), [1]);
        assert_eq!(share_out(&[gpu(1, 5, 2)], 8), [5]);
        assert_eq!(share_out(&[gpu(1, 2, 5)], 8), [5]);
        assert_eq!(share_out(&[gpu(2, 1, 0)], 8), [2]);
        assert_eq!(share_out(&[Reasons { processes: 4, ..gpu(1, 2, 3) }], 8), [4]);
        assert_eq!(share_out(&[gpu(1, 9, 0)], 8), [8]);
    }

    #[test]
    fn each_gpu_has_the_least_before_one_has_more() {
        assert_eq!(share_out(&[gpu(1, 8, 0), gpu(1, 0, 0), gpu(1, 3, 0)], 8), [6, 1, 1]);
        assert_eq!(share_out(&[gpu(1, 3, 0), gpu(1, 8, 0)], 8), [3, 5]);
        assert_eq!(share_out(&[gpu(2, 0, 0), gpu(2, 4, 0)], 3), [2, 1]);
        assert_eq!(share_out(&[gpu(1, 0, 0), gpu(1, 0, 0)], 1), [1, 0]);
        assert!(share_out(&[], 8).is_empty());
    }
}
