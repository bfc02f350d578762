//! Running one path: the instruction loop, control flow, and faults with their place.

use std::time::{Duration, Instant};

use super::block::{BlockState, ClusterState};
use super::grid::Grid;
use super::warp::{Path, PathState, WarpState, lanes};
use crate::alu::{Alu, LANES, Lanes};
use crate::fault::{Fault, Location};
use crate::launch::Host;
use crate::program::{CONSTANT, Instruction, Op, UNGUARDED};

/// What `nanosleep` takes at most, in nanoseconds.
const LONGEST_SLEEP: u32 = 1_000_000;

/// A warp while it runs.
pub(super) struct Exec<'a> {
    pub grid: &'a Grid,
    pub host: &'a dyn Host,
    pub cluster: &'a mut ClusterState,
    pub block: &'a mut BlockState,
    pub warp: &'a mut WarpState,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Flow {
    Next,
    /// Another path may have to run: this one waits, split, returned or ended.
    Switch,
    /// The path waits for what others do, by looking again and again.
    Yield,
    /// The quantum is used up.
    Exhausted,
}

/// What went wrong, and in which lane.
#[derive(Debug)]
pub(super) struct Stop {
    pub lane: usize,
    pub trouble: StepError,
}

#[derive(Debug)]
pub(super) enum StepError {
    Address { address: u64, write: bool },
    Misaligned { address: u64, align: u32 },
    Stack,
    Trap,
    Assert(String),
    Illegal(String),
}

impl StepError {
    pub fn at(self, lane: usize) -> Stop {
        Stop { lane, trouble: self }
    }
}

/// The operands of the instruction at hand.
#[derive(Clone, Copy)]
pub(super) struct Operands<'p> {
    pub results: &'p [u32],
    pub sources: &'p [u32],
}

pub(super) fn location(
    grid: &Grid,
    block: &BlockState,
    warp: &WarpState,
    path: &Path,
    lane: u32,
) -> Location {
    let thread = warp.index * LANES as u32 + lane.min(LANES as u32 - 1);
    let [x, y, _] = grid.block;
    Location {
        kernel: grid.kernel.clone(),
        line: grid.program.code.get(path.pc as usize).map_or(0, |instruction| instruction.line),
        block: block.index,
        thread: [thread % x, thread / x % y, thread / x / y],
    }
}

impl<'a> Exec<'a> {
    #[inline(always)]
    pub fn row(&self, path: &Path, operand: u32) -> &Lanes {
        if operand & CONSTANT != 0 {
            &self.grid.constants[(operand & !CONSTANT) as usize]
        } else {
            &self.warp.registers[(path.base + operand) as usize]
        }
    }

    /// Of an instruction with four sources. Written out: as a loop over them it would be a call for each.
    #[inline(always)]
    fn rows(&self, path: &Path, sources: &[u32]) -> [&Lanes; 4] {
        [
            self.row(path, sources[0]),
            self.row(path, sources[1]),
            self.row(path, sources[2]),
            self.row(path, sources[3]),
        ]
    }

    #[inline(always)]
    fn compute(&mut self, path: &Path, run: Alu, operands: Operands<'_>, mask: u32) {
        let mut out = [0; LANES];
        run(&mut out, self.rows(path, operands.sources));
        self.set(path, operands.results[0], &out, mask);
    }

    /// Writes the lanes of the mask.
    pub fn set(&mut self, path: &Path, row: u32, values: &Lanes, mask: u32) {
        let target = &mut self.warp.registers[(path.base + row) as usize];
        if mask == u32::MAX {
            *target = *values;
            return;
        }
        for lane in 0..LANES {
            target[lane] = if mask >> lane & 1 == 1 { values[lane] } else { target[lane] };
        }
    }

    /// The lanes in which a predicate holds.
    pub fn predicate(&self, path: &Path, operand: u32) -> u32 {
        let row = self.row(path, operand);
        // Mostly all lanes agree, and hold 0 or 1: that is seen at once.
        let (any, all) = row.iter().fold((0, u64::MAX), |(any, all), value| (any | value, all & value));
        match (any, all) {
            (0, _) => 0,
            (_, 1..) => u32::MAX,
            _ => (0..LANES).fold(0, |mask, lane| mask | u32::from(row[lane] != 0) << lane),
        }
    }

    fn active(&self, path: &Path, instruction: &Instruction) -> u32 {
        if instruction.guard == UNGUARDED {
            return path.mask;
        }
        let holds = self.predicate(path, instruction.guard);
        path.mask & if instruction.negated { !holds } else { holds }
    }

    /// Runs until the path must give way. The number of instructions run comes back too.
    pub fn run_path(
        &mut self,
        path: &mut Path,
        others: &mut Vec<Path>,
        quantum: u32,
        fair: bool,
    ) -> Result<(u32, Flow), Box<Fault>> {
        let grid = self.grid;
        let program = &*grid.program;
        let depth = path.frames.len();
        let mut stops: Vec<u32> = others
            .iter()
            .filter(|other| other.state == PathState::Ready && other.frames.len() == depth)
            .map(|other| other.pc)
            .collect();
        stops.sort_unstable();
        let earliest = if fair { u32::MAX } else { stops.first().copied().unwrap_or(u32::MAX) };
        for used in 0..quantum {
            if used > 0 && (path.pc >= earliest || fair && stops.binary_search(&path.pc).is_ok()) {
                return Ok((used, Flow::Switch));
            }
            let instruction = &program.code[path.pc as usize];
            let mask = self.active(path, instruction);
            let at = instruction.operands as usize;
            let split = at + usize::from(instruction.results);
            let operands = Operands {
                results: &program.operands[at..split],
                sources: &program.operands[split..split + usize::from(instruction.sources)],
            };
            if let Op::Alu(run) = instruction.op {
                if mask != 0 {
                    self.compute(path, run, operands, mask);
                }
                path.pc += 1;
                continue;
            }
            let flow = match self.step(path, others, instruction, operands, mask) {
                Ok(flow) => flow,
                Err(stop) => return Err(Box::new(self.fault(path, stop))),
            };
            if flow != Flow::Next {
                return Ok((used + 1, flow));
            }
        }
        Ok((quantum, Flow::Exhausted))
    }

    fn fault(&self, path: &Path, stop: Stop) -> Fault {
        let at = location(self.grid, self.block, self.warp, path, stop.lane as u32);
        match stop.trouble {
            StepError::Address { address, write } => Fault::IllegalAddress { at, address, write },
            StepError::Misaligned { address, align } => Fault::MisalignedAddress { at, address, align },
            StepError::Stack => Fault::StackOverflow { at, limit: super::warp::LOCAL_LIMIT },
            StepError::Trap => Fault::Trap { at },
            StepError::Assert(message) => Fault::Assert { at, message },
            StepError::Illegal(message) => Fault::IllegalInstruction { at, message },
        }
    }

    /// Everything but arithmetic. Leaves `pc` at the next instruction to run.
    fn step(
        &mut self,
        path: &mut Path,
        others: &mut Vec<Path>,
        instruction: &Instruction,
        operands: Operands<'_>,
        mask: u32,
    ) -> Result<Flow, Stop> {
        match &instruction.op {
            Op::Branch(target) => return Ok(branch(path, others, mask, *target)),
            // Nobody executes it. Waiting instructions count lanes themselves.
            _ if mask == 0 => {
                path.pc += 1;
                return Ok(Flow::Next);
            }
            Op::BranchTable(targets) => return self.branch_table(path, others, operands, mask, targets),
            Op::Call(call) => return self.call(path, others, operands, mask, call),
            Op::Return => return self.ret(path, others, mask),
            Op::Exit => return Ok(self.exit(path, mask)),
            Op::Vote { sync: true, .. } | Op::Shuffle { sync: true, .. }
                if !self.gathered(path, others, operands, mask) =>
            {
                return Ok(Flow::Switch);
            }
            Op::Match { .. } | Op::Reduce(_) | Op::Elect | Op::WarpBarrier
                if !self.gathered(path, others, operands, mask) =>
            {
                return Ok(Flow::Switch);
            }
            // Lanes that the guard leaves out do not wait.
            Op::Barrier(_) | Op::ClusterBarrier { .. } if mask != path.mask => {
                let mut past = path.clone();
                past.mask &= !mask;
                past.pc += 1;
                others.push(past);
                path.mask = mask;
                return Ok(Flow::Switch);
            }
            Op::Barrier(barrier) => return self.barrier(path, operands, mask, *barrier),
            Op::ClusterBarrier { arrive, wait } => {
                return Ok(self.cluster_barrier(path, mask, *arrive, *wait));
            }
            _ => {}
        }
        let flow = self.effect(path, instruction, operands, mask)?;
        path.pc += 1;
        Ok(flow)
    }

    /// Instructions after which the path simply goes on.
    fn effect(
        &mut self,
        path: &mut Path,
        instruction: &Instruction,
        operands: Operands<'_>,
        mask: u32,
    ) -> Result<Flow, Stop> {
        let Operands { results, sources } = operands;
        match &instruction.op {
            Op::Alu(run) => self.compute(path, *run, operands, mask),
            Op::Carry(run) => {
                let mut out = [[0; LANES]; 2];
                run(&mut out, self.rows(path, sources));
                self.set(path, results[0], &out[0], mask);
                self.set(path, results[1], &out[1], mask);
            }
            Op::Special(special) => {
                let values = self.special(path, *special, sources);
                self.set(path, results[0], &values, mask);
            }
            Op::FrameAddress(offset) => {
                let address = u64::from(path.fp.wrapping_add(*offset));
                self.set(path, results[0], &[address; LANES], mask);
            }
            Op::LoadParameter(access) => self.load_parameter(path, access, results, mask)?,
            Op::Load(access) => {
                self.load(path, access, results, sources[0], mask)?;
                if access.volatile && self.spins(path, results[0]) {
                    return Ok(Flow::Yield);
                }
            }
            Op::Store(access) => self.store(path, access, sources, mask)?,
            Op::Atomic(atomic) => {
                self.atomic(path, atomic, results[0], sources, mask)?;
                if atomic.access.volatile && self.spins(path, results[0]) {
                    return Ok(Flow::Yield);
                }
            }
            Op::Atomic128 { access, compare } => {
                self.atomic128(path, access, *compare, results, sources, mask)?;
                if self.spins(path, results[0]) {
                    return Ok(Flow::Yield);
                }
            }
            Op::Copy { bytes, offsets } => self.copy(path, *bytes, *offsets, sources, mask)?,
            Op::BulkCopy { to, from, signal } => self.bulk_copy(path, *to, *from, *signal, sources, mask)?,
            Op::TensorLoad { dimensions } => self.tensor_load(path, *dimensions, sources, mask)?,
            Op::TensorStore { dimensions } => self.tensor_store(path, *dimensions, sources, mask)?,
            Op::TensorMapReplace { space, offset, bytes } => {
                self.tensor_map_replace(path, (*space, *offset, *bytes), sources, mask)?;
            }
            Op::TensorMapCopy { to, from } => self.tensor_map_copy(path, (*to, *from), sources, mask)?,
            Op::Mbarrier(kind, space, offset) => {
                self.mbarrier(path, *kind, *space, *offset, results[0], sources, mask)?;
                if self.spins(path, results[0]) {
                    return Ok(Flow::Yield);
                }
            }
            Op::Fence => std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst),
            Op::Trap => return Err(StepError::Trap.at(mask.trailing_zeros() as usize)),
            Op::Illegal(message) => {
                return Err(StepError::Illegal(message.to_string()).at(mask.trailing_zeros() as usize));
            }
            Op::Builtin(call) => self.builtin(path, call, operands, mask)?,
            Op::Vote { kind, sync } => self.vote(path, *kind, *sync, operands, mask),
            Op::Match { all } => self.matching(path, *all, operands, mask),
            Op::Shuffle { mode, .. } => self.shuffle(path, *mode, operands, mask),
            Op::Reduce(fold) => self.reduce(path, *fold, operands, mask),
            Op::Elect => self.elect(path, operands, mask),
            Op::ActiveMask => self.set(path, results[0], &[u64::from(mask); LANES], mask),
            Op::Sleep => {
                let row = self.row(path, sources[0]);
                let nanoseconds = lanes(mask).map(|lane| row[lane] as u32).max().unwrap_or(0);
                // The instruction is done; its turn ends, and the next one comes later.
                if nanoseconds > 0 {
                    let rest = Duration::from_nanos(u64::from(nanoseconds.min(LONGEST_SLEEP)));
                    path.state = PathState::Asleep(Instant::now() + rest);
                }
                return Ok(Flow::Yield);
            }
            Op::Allocate => self.allocate(path, operands, mask)?,
            Op::StackSave => self.set(path, results[0], &[u64::from(path.sp); LANES], mask),
            Op::StackRestore => {
                let sp = self.row(path, sources[0])[mask.trailing_zeros() as usize] as u32;
                path.sp = sp.clamp(path.fp, path.sp);
            }
            Op::MoveFragment(transfer) => self.move_fragment(path, transfer, operands)?,
            Op::MultiplyFragments(product) => self.multiply_fragments(path, product, operands),
            Op::Matrix(multiply) => self.multiply(path, multiply, operands),
            Op::LoadMatrix { count, transposed, store, offset } => {
                self.move_matrix(path, *count, *transposed, *store, *offset, operands)?;
            }
            Op::Fetch(fetch) => self.fetch(path, fetch, operands, mask)?,
            Op::Surface(surface) => self.surface(path, surface, operands, mask)?,
            Op::ViewQuery(query) => self.query_view(path, *query, operands, mask)?,
            Op::WarpBarrier
            | Op::Branch(_)
            | Op::BranchTable(_)
            | Op::Call(_)
            | Op::Return
            | Op::Exit
            | Op::Barrier(_)
            | Op::ClusterBarrier { .. } => {}
        }
        Ok(Flow::Next)
    }

    /// Whether the same access has given the same so often in a row that the warp seems to wait for another.
    fn spins(&mut self, path: &Path, result: u32) -> bool {
        const PATIENCE: u32 = 16;
        let seen = self
            .row(path, result)
            .iter()
            .fold(u64::from(path.pc), |sum, value| sum.rotate_left(5).wrapping_add(*value));
        let (last, count) = self.warp.spin;
        let count = if last == seen { count + 1 } else { 1 };
        self.warp.spin = (seen, if count >= PATIENCE { 0 } else { count });
        count >= PATIENCE
    }

    fn branch_table(
        &mut self,
        path: &mut Path,
        others: &mut Vec<Path>,
        operands: Operands<'_>,
        mask: u32,
        targets: &[u32],
    ) -> Result<Flow, Stop> {
        let index = *self.row(path, operands.sources[0]);
        let lane = mask.trailing_zeros() as usize;
        let Some(target) = targets.get(index[lane] as u32 as usize) else {
            let message = format!("branch index {} of {} targets", index[lane] as u32, targets.len());
            return Err(StepError::Illegal(message).at(lane));
        };
        let same =
            lanes(mask).filter(|other| index[*other] == index[lane]).fold(0, |same, other| same | 1 << other);
        if same == path.mask {
            path.pc = *target;
            return Ok(Flow::Next);
        }
        // The other lanes execute the instruction again, each group for its own target.
        let mut taken = path.clone();
        taken.mask = same;
        taken.pc = *target;
        path.mask &= !same;
        others.push(taken);
        Ok(Flow::Switch)
    }

    pub fn exit(&mut self, path: &mut Path, mask: u32) -> Flow {
        self.warp.live &= !mask;
        self.block.live -= mask.count_ones();
        self.cluster.live -= mask.count_ones();
        path.mask &= !mask;
        path.pc += 1;
        self.check_barriers();
        Flow::Switch
    }
}

fn branch(path: &mut Path, others: &mut Vec<Path>, taken: u32, target: u32) -> Flow {
    if taken == path.mask {
        path.pc = target;
        return Flow::Next;
    }
    path.pc += 1;
    if taken == 0 {
        return Flow::Next;
    }
    let mut away = path.clone();
    away.mask = taken;
    away.pc = target;
    path.mask &= !taken;
    others.push(away);
    Flow::Switch
}
