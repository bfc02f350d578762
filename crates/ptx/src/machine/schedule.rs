//! Who runs next: warps of a block in turn, paths of a warp by place and, now and then, by age.

use std::time::Instant;

use super::block::{BlockState, Cluster, ClusterState};
use super::grid::Grid;
use super::step::{Exec, Flow};
use super::warp::{Path, PathState, Warp};
use crate::Fault;
use crate::launch::Host;
use crate::program::Op;

/// Instructions of a warp before the next warp's turn.
const WARP_QUANTUM: u32 = 8192;
/// Instructions of a path before another path of its warp must run.
const PATH_QUANTUM: u32 = 512;
/// Turns of all warps before another cluster's turn.
const ROUNDS: u32 = 32;

pub(crate) enum Progress {
    Done,
    More,
    /// Nothing but waiting for others was seen, or sleep until then.
    Spins(Option<Instant>),
}

#[derive(PartialEq)]
enum WarpProgress {
    Some,
    Spun,
    Idle,
    Finished,
}

impl Cluster {
    pub fn run(&mut self, grid: &Grid, host: &dyn Host) -> Result<Progress, Box<Fault>> {
        for _ in 0..ROUNDS {
            if grid.is_stopped() || host.cancelled() {
                return Ok(Progress::More);
            }
            let (mut ran, mut spun, mut left) = (false, false, false);
            for block in &mut self.blocks {
                for warp in &mut block.warps {
                    match warp.run(grid, host, &mut self.state, &mut block.state)? {
                        WarpProgress::Some => ran = true,
                        WarpProgress::Spun => spun = true,
                        WarpProgress::Idle => {}
                        WarpProgress::Finished => continue,
                    }
                    left = true;
                }
            }
            if !left {
                return Ok(Progress::Done);
            }
            // A warp that was idle may have been freed by one after it.
            if !ran && !self.has_ready(grid) {
                if !spun {
                    self.unblock(grid)?;
                } else {
                    return Ok(Progress::Spins(self.sleeps_until()));
                }
            } else if !ran && spun {
                return Ok(Progress::Spins(self.sleeps_until()));
            }
        }
        Ok(Progress::More)
    }

    /// When the first of its paths wakes, if one sleeps and none is ready.
    fn sleeps_until(&self) -> Option<Instant> {
        let mut first: Option<Instant> = None;
        for path in self.blocks.iter().flat_map(|block| &block.warps).flat_map(|warp| &warp.paths) {
            match path.state {
                PathState::Ready => return None,
                PathState::Asleep(until) => first = Some(first.map_or(until, |first| first.min(until))),
                _ => {}
            }
        }
        first
    }

    fn has_ready(&mut self, grid: &Grid) -> bool {
        let mut ready = false;
        for block in &mut self.blocks {
            for warp in &mut block.warps {
                warp.wake(&self.state, &block.state, &grid.program.code);
                ready |= warp.paths.iter().any(|path| path.state == PathState::Ready);
            }
        }
        ready
    }

    /// No thread can go on. Lanes that wait for others of their warp which wait elsewhere go on without them;
    /// else the threads wait for ever.
    fn unblock(&mut self, grid: &Grid) -> Result<(), Box<Fault>> {
        for block in &mut self.blocks {
            for warp in &mut block.warps {
                if let Some(path) =
                    warp.paths.iter_mut().find(|path| matches!(path.state, PathState::Converge(_)))
                {
                    path.state = PathState::Ready;
                    path.released = true;
                    return Ok(());
                }
            }
        }
        for block in &mut self.blocks {
            for warp in &mut block.warps {
                if let Some(path) = warp.paths.first().cloned() {
                    let at = super::step::location(
                        grid,
                        &block.state,
                        &warp.state,
                        &path,
                        path.mask.trailing_zeros(),
                    );
                    return Err(Box::new(Fault::Deadlock { at }));
                }
            }
        }
        Ok(())
    }
}

impl Warp {
    /// Makes ready the paths whose wait is over.
    fn wake(&mut self, cluster: &ClusterState, block: &BlockState, code: &[crate::program::Instruction]) {
        let live = self.state.live;
        let at_warp_barrier = |path: &Path| {
            matches!(path.state, PathState::Converge(_))
                && code
                    .get(path.pc as usize)
                    .is_some_and(|instruction| matches!(instruction.op, Op::WarpBarrier))
        };
        let gathered =
            self.paths.iter().filter(|path| at_warp_barrier(path)).fold(0, |mask, path| mask | path.mask);
        for path in &mut self.paths {
            match path.state {
                PathState::Ready => {}
                PathState::Converge(required) => {
                    let barrier = at_warp_barrier(path);
                    let there = if barrier { gathered } else { path.mask };
                    if required & live & !there == 0 {
                        path.state = PathState::Ready;
                        path.released |= barrier;
                    }
                }
                PathState::Barrier { id, phase, result } => {
                    let barrier = &block.barriers[usize::from(id)];
                    if barrier.phase != phase {
                        path.state = PathState::Ready;
                        if let Some((row, kind)) = result {
                            super::barrier::deliver(&mut self.state, path, row, kind, barrier.result);
                        }
                    }
                }
                PathState::Cluster => {
                    if cluster.phase != path.cluster_phase {
                        path.state = PathState::Ready;
                    }
                }
                PathState::Asleep(until) => {
                    if until <= Instant::now() {
                        path.state = PathState::Ready;
                    }
                }
            }
        }
    }

    /// The ready path to run: the innermost and earliest, so that others are caught up with; or, for fairness,
    /// the one that has waited longest.
    fn pick(&self, fair: bool) -> Option<usize> {
        let ready = self.paths.iter().enumerate().filter(|(_, path)| path.state == PathState::Ready);
        let chosen = if fair {
            ready.min_by_key(|(_, path)| path.ran)
        } else {
            ready.min_by_key(|(_, path)| (usize::MAX - path.frames.len(), path.pc))
        };
        chosen.map(|(index, _)| index)
    }

    fn run(
        &mut self,
        grid: &Grid,
        host: &dyn Host,
        cluster: &mut ClusterState,
        block: &mut BlockState,
    ) -> Result<WarpProgress, Box<Fault>> {
        let mut left = WARP_QUANTUM;
        let mut fair = false;
        let mut ran = WarpProgress::Idle;
        let mut spins = 0;
        while left > 0 {
            if self.paths.is_empty() {
                return Ok(WarpProgress::Finished);
            }
            if self.paths.len() > 1 || self.paths[0].state != PathState::Ready {
                self.wake(cluster, block, &grid.program.code);
            }
            let Some(index) = self.pick(fair) else {
                let sleeps = self.paths.iter().any(|path| matches!(path.state, PathState::Asleep(_)));
                return Ok(if ran == WarpProgress::Idle && sleeps { WarpProgress::Spun } else { ran });
            };
            let mut path = self.paths.swap_remove(index);
            self.state.quanta += 1;
            path.ran = self.state.quanta;
            let quantum = if self.paths.is_empty() { left } else { left.min(PATH_QUANTUM) };
            let mut exec = Exec { grid, host, cluster, block, warp: &mut self.state };
            let (used, flow) = exec.run_path(&mut path, &mut self.paths, quantum, fair)?;
            left = left.saturating_sub(used.max(1));
            fair = matches!(flow, Flow::Exhausted | Flow::Yield);
            if path.mask != 0 {
                self.rejoin(path);
            }
            if flow == Flow::Yield {
                spins += 1;
                if spins > self.paths.len() {
                    return Ok(WarpProgress::Spun);
                }
            } else {
                ran = WarpProgress::Some;
            }
        }
        Ok(if ran == WarpProgress::Idle { WarpProgress::Spun } else { ran })
    }

    fn rejoin(&mut self, path: Path) {
        if path.state == PathState::Ready && !path.released {
            let other = self
                .paths
                .iter_mut()
                .find(|other| other.state == PathState::Ready && other.same_place(&path));
            if let Some(other) = other {
                other.mask |= path.mask;
                return;
            }
        }
        self.paths.push(path);
    }
}
