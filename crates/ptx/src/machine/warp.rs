//! A warp's state: registers, local memory and the paths its lanes are on.

use std::time::Instant;

use crate::alu::{LANES, Lanes};
use crate::program::BarrierKind;

/// Local memory and stack of one thread, as on devices.
pub(crate) const LOCAL_LIMIT: u32 = 512 * 1024;
/// Frames of a call chain, and rows of registers in them: 8 MiB for a warp.
pub(crate) const MAX_DEPTH: usize = 16 * 1024;
pub(crate) const MAX_ROWS: u32 = 32 * 1024;

pub(crate) struct Warp {
    pub state: WarpState,
    pub paths: Vec<Path>,
}

pub(crate) struct WarpState {
    /// Which of the block's.
    pub index: u32,
    /// Lanes that have not exited.
    pub live: u32,
    pub registers: Vec<Lanes>,
    pub local: Vec<Vec<u8>>,
    /// How often one of its paths was scheduled.
    pub quanta: u64,
    /// A digest of the last access that may be a spin with what it gave, and how often it came in a row.
    pub spin: (u64, u32),
}

#[derive(Debug, Clone)]
pub(crate) struct Path {
    pub pc: u32,
    pub mask: u32,
    pub function: u32,
    /// First row of the frame.
    pub base: u32,
    /// Frame and stack pointer in local memory.
    pub fp: u32,
    pub sp: u32,
    pub frames: Vec<Frame>,
    pub state: PathState,
    /// When it ran last.
    pub ran: u64,
    /// Executes a warp-synchronous instruction without waiting for more lanes.
    pub released: bool,
    /// Phase of the cluster's barrier at this path's arrival.
    pub cluster_phase: u32,
}

/// A caller, to which its callee returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Of the call instruction.
    pub pc: u32,
    pub function: u32,
    pub base: u32,
    pub fp: u32,
    pub sp: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PathState {
    Ready,
    /// Waits at a warp-synchronous instruction for these lanes.
    Converge(u32),
    Barrier {
        id: u8,
        phase: u32,
        result: Option<(u32, BarrierKind)>,
    },
    Cluster,
    /// Rests until then.
    Asleep(Instant),
}

impl Path {
    /// Whether two paths can go on as one.
    pub fn same_place(&self, other: &Path) -> bool {
        self.pc == other.pc && self.base == other.base && self.sp == other.sp && self.frames == other.frames
    }
}

impl Warp {
    pub fn new(index: u32, lanes: u32, start: u32, function: u32, registers: u32, frame: u32) -> Self {
        let mask = if lanes >= LANES as u32 { u32::MAX } else { (1 << lanes) - 1 };
        let path = Path {
            pc: start,
            mask,
            function,
            base: 0,
            fp: 0,
            sp: frame,
            frames: Vec::new(),
            state: PathState::Ready,
            ran: 0,
            released: false,
            cluster_phase: 0,
        };
        let state = WarpState {
            index,
            live: mask,
            registers: vec![[0; LANES]; registers as usize],
            local: vec![Vec::new(); LANES],
            quanta: 0,
            spin: (u64::MAX, 0),
        };
        Self { state, paths: vec![path] }
    }
}

/// The set bits' positions.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let lane = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            lane
        })
    })
}
