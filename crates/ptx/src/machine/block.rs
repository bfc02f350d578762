//! Clusters and blocks: what their threads share.

use super::grid::Grid;
use super::warp::Warp;

pub(crate) const BARRIERS: usize = 16;

/// Blocks that may reach into each other's shared memory; a block alone without clusters.
pub(crate) struct Cluster {
    pub state: ClusterState,
    pub blocks: Vec<Block>,
}

pub(crate) struct ClusterState {
    /// Shared memory of each block, by rank.
    pub shared: Vec<Box<[u8]>>,
    pub arrived: u32,
    pub phase: u32,
    /// Threads that have not exited.
    pub live: u32,
}

pub(crate) struct Block {
    pub state: BlockState,
    pub warps: Vec<Warp>,
}

pub(crate) struct BlockState {
    pub index: [u32; 3],
    pub rank: u32,
    pub barriers: [BarrierState; BARRIERS],
    pub live: u32,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BarrierState {
    pub arrived: u32,
    /// As one of the arrivals said; else all live threads.
    pub expected: Option<u32>,
    /// Completed phases.
    pub phase: u32,
    pub set: u32,
    pub all: bool,
    /// Of the last completed phase.
    pub result: (u32, bool, bool),
}

impl Cluster {
    /// The cluster of this number, with its threads at the kernel's start.
    pub fn new(grid: &Grid, number: u64) -> Self {
        let [x, y, _] = grid.clusters;
        let size = grid.cluster;
        let at = [
            (number % u64::from(x)) as u32,
            (number / u64::from(x) % u64::from(y)) as u32,
            (number / u64::from(x) / u64::from(y)) as u32,
        ];
        let threads: u32 = grid.block.iter().product();
        let count = size.iter().product::<u32>();
        let blocks: Vec<Block> = (0..count)
            .map(|rank| {
                let within = [rank % size[0], rank / size[0] % size[1], rank / size[0] / size[1]];
                let index = [0, 1, 2].map(|axis| at[axis] * size[axis] + within[axis]);
                Block::new(grid, index, rank, threads)
            })
            .collect();
        let shared = (0..count).map(|_| vec![0; grid.shared as usize].into_boxed_slice()).collect();
        Self { state: ClusterState { shared, arrived: 0, phase: 0, live: threads * count }, blocks }
    }
}

impl Block {
    fn new(grid: &Grid, index: [u32; 3], rank: u32, threads: u32) -> Self {
        let function = &grid.program.functions[grid.function as usize];
        let warps = (0..threads.div_ceil(32))
            .map(|warp| {
                let lanes = (threads - warp * 32).min(32);
                Warp::new(warp, lanes, function.start, grid.function, function.registers, function.frame)
            })
            .collect();
        let state = BlockState { index, rank, barriers: [BarrierState::default(); BARRIERS], live: threads };
        Self { state, warps }
    }
}
