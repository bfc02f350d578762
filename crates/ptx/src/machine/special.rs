//! Special registers' values.

use std::cmp::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use super::step::Exec;
use super::warp::Path;
use super::windows::split_shared;
use crate::alu::{LANES, Lanes};
use crate::program::Special;

fn nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Exec<'_> {
    fn clock(&self) -> u64 {
        let nanoseconds = self.grid.begun.elapsed().as_nanos();
        (nanoseconds * u128::from(self.grid.device.clock_hz) / 1_000_000_000) as u64
    }

    pub fn special(&self, path: &Path, special: Special, sources: &[u32]) -> Lanes {
        let grid = self.grid;
        let linear = u64::from(grid.block[0]) * u64::from(grid.block[1]);
        let linear_block = |index: [u32; 3]| {
            let [x, y, z] = index.map(u64::from);
            x + u64::from(grid.grid[0]) * (y + u64::from(grid.grid[1]) * z)
        };
        let cluster = |axis: u8| self.block.index[usize::from(axis)] / grid.cluster[usize::from(axis)];
        let one = match special {
            Special::Thread(axis) => {
                let first = u64::from(self.warp.index) * LANES as u64;
                let (x, y) = (u64::from(grid.block[0]), u64::from(grid.block[1]));
                return std::array::from_fn(|lane| {
                    let thread = first + lane as u64;
                    match axis {
                        0 => thread % x,
                        1 => thread / x % y,
                        _ => thread / linear,
                    }
                });
            }
            Special::Lane => return std::array::from_fn(|lane| lane as u64),
            Special::LaneMask(order, or_equal) => {
                return std::array::from_fn(|lane| {
                    let below = (1u64 << lane) - 1;
                    let own = if or_equal { 1 << lane } else { 0 };
                    own | match order {
                        Ordering::Equal => 0,
                        Ordering::Less => below,
                        Ordering::Greater => 0xffff_ffff & !below & !(1 << lane),
                    }
                });
            }
            Special::RankOf => {
                let own = self.block.rank;
                return self
                    .row(path, sources[0])
                    .map(|address| u64::from(split_shared(address).0.unwrap_or(own)));
            }
            Special::BlockSize(axis) => u64::from(grid.block[usize::from(axis)]),
            Special::Block(axis) => u64::from(self.block.index[usize::from(axis)]),
            Special::GridSize(axis) => u64::from(grid.grid[usize::from(axis)]),
            Special::Warp => u64::from(self.warp.index),
            Special::Warps => (linear * u64::from(grid.block[2])).div_ceil(LANES as u64),
            Special::Multiprocessor => grid.device.multiprocessor(linear_block(self.block.index)),
            Special::Multiprocessors => u64::from(grid.device.multiprocessors),
            Special::GridId => grid.id,
            Special::Clock => self.clock() & 0xffff_ffff,
            Special::ClockHigh => self.clock() >> 32,
            Special::Clock64 => self.clock(),
            Special::GlobalTimer => nanoseconds(),
            Special::GlobalTimerHigh => nanoseconds() >> 32,
            Special::StaticAndDynamicShared => u64::from(grid.shared),
            Special::DynamicShared => u64::from(grid.dynamic_shared),
            Special::Cluster(axis) => u64::from(cluster(axis)),
            Special::Clusters(axis) => u64::from(grid.clusters[usize::from(axis)]),
            Special::ClusterBlock(axis) => {
                u64::from(self.block.index[usize::from(axis)] % grid.cluster[usize::from(axis)])
            }
            Special::ClusterSize(axis) => u64::from(grid.cluster[usize::from(axis)]),
            Special::ClusterRank => u64::from(self.block.rank),
            Special::ClusterBlocks => u64::from(grid.cluster.iter().product::<u32>()),
            Special::ExplicitCluster => u64::from(grid.explicit_cluster),
            Special::Workspace => grid.device.workspace & 0xffff_ffff,
            Special::WorkspaceHigh => grid.device.workspace >> 32,
            Special::Zero => 0,
        };
        [one; LANES]
    }
}
