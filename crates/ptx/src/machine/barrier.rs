//! Barriers of blocks and of clusters.

use super::block::BARRIERS;
use super::step::{Exec, Flow, Operands, StepError, Stop};
use super::warp::{Path, PathState, WarpState, lanes};
use crate::program::{Barrier, BarrierKind};

impl Exec<'_> {
    pub fn barrier(
        &mut self,
        path: &mut Path,
        operands: Operands<'_>,
        mask: u32,
        barrier: Barrier,
    ) -> Result<Flow, Stop> {
        let lane = mask.trailing_zeros() as usize;
        let sources = operands.sources;
        let id = self.row(path, sources[0])[lane] as u32 as usize;
        if id >= BARRIERS {
            return Err(StepError::Illegal(format!("barrier {id}; there are {BARRIERS}")).at(lane));
        }
        let expected = barrier.counted.then(|| self.row(path, sources[1])[lane] as u32);
        // A warp that arrives whole counts for 32 threads where threads are counted.
        let whole = barrier.counted && mask == self.warp.live;
        let arriving = if whole { 32 } else { mask.count_ones() };
        let inverted = match barrier.kind {
            BarrierKind::Sync | BarrierKind::Arrive => None,
            BarrierKind::Popc { inverted } | BarrierKind::And { inverted } | BarrierKind::Or { inverted } => {
                Some(inverted)
            }
        };
        let set = inverted.map(|inverted| {
            let holds = self.predicate(path, sources[sources.len() - 1]);
            mask & if inverted { !holds } else { holds }
        });
        let state = &mut self.block.barriers[id];
        if state.arrived == 0 {
            (state.set, state.all) = (0, true);
        }
        state.arrived += arriving;
        state.expected = expected.or(state.expected);
        if let Some(set) = set {
            state.set += set.count_ones();
            state.all &= set == mask;
        }
        let phase = state.phase;
        path.pc += 1;
        if barrier.kind == BarrierKind::Arrive {
            self.check_barriers();
            return Ok(Flow::Next);
        }
        let result = operands.results.first().map(|row| (*row, barrier.kind));
        path.state = PathState::Barrier { id: id as u8, phase, result };
        self.check_barriers();
        Ok(Flow::Switch)
    }

    /// Completes the barriers at which all expected threads have arrived.
    pub fn check_barriers(&mut self) {
        let live = self.block.live;
        for barrier in &mut self.block.barriers {
            if barrier.arrived > 0 && barrier.arrived >= barrier.expected.unwrap_or(live) {
                barrier.result = (barrier.set, barrier.all, barrier.set > 0);
                barrier.arrived = 0;
                barrier.expected = None;
                barrier.phase = barrier.phase.wrapping_add(1);
            }
        }
        if self.cluster.arrived > 0 && self.cluster.arrived >= self.cluster.live {
            self.cluster.arrived = 0;
            self.cluster.phase = self.cluster.phase.wrapping_add(1);
        }
    }

    pub fn cluster_barrier(&mut self, path: &mut Path, mask: u32, arrive: bool, wait: bool) -> Flow {
        path.pc += 1;
        if arrive {
            path.cluster_phase = self.cluster.phase;
            self.cluster.arrived += mask.count_ones();
            self.check_barriers();
        }
        if wait && self.cluster.phase == path.cluster_phase {
            path.state = PathState::Cluster;
            return Flow::Switch;
        }
        Flow::Next
    }
}

/// Writes the result of a completed `bar.red` for a path that waited there.
pub(super) fn deliver(
    warp: &mut WarpState,
    path: &Path,
    row: u32,
    kind: BarrierKind,
    (count, all, any): (u32, bool, bool),
) {
    let value = match kind {
        BarrierKind::Popc { .. } => u64::from(count),
        BarrierKind::And { .. } => u64::from(all),
        BarrierKind::Or { .. } => u64::from(any),
        BarrierKind::Sync | BarrierKind::Arrive => return,
    };
    for lane in lanes(path.mask) {
        warp.registers[(path.base + row) as usize][lane] = value;
    }
}
