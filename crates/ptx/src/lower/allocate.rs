//! Registers to rows: liveness over the control flow, then one pass over the intervals.
//!
//! Lanes never share a row's elements, so what holds for one thread's registers holds for a diverged warp's.
//! A guarded result is also a use: where the guard is false the old value lives on.

use std::collections::BTreeSet;

use super::function::is_row;
use crate::program::{Instruction, Op, UNGUARDED};
use crate::types::Type;

pub(super) struct Allocation {
    assigned: Vec<u32>,
    pub rows: u32,
    /// 32-bit registers that a thread would need.
    pub words: u32,
}

impl Allocation {
    pub fn row(&self, register: u32) -> u32 {
        self.assigned[register as usize]
    }
}

struct Block {
    start: usize,
    end: usize,
    next: Vec<usize>,
    live_in: Bits,
}

#[derive(Clone, PartialEq)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn insert(&mut self, bit: u32) {
        self.0[bit as usize / 64] |= 1 << (bit % 64);
    }

    fn remove(&mut self, bit: u32) {
        self.0[bit as usize / 64] &= !(1 << (bit % 64));
    }

    fn union(&mut self, other: &Bits) {
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index as u32 * 64 + bit)
        })
    }
}

/// Calls `visit` with each register that the instruction reads, then each that it wholly overwrites.
fn visit(instruction: &Instruction, operands: &[u32], mut visit: impl FnMut(u32, bool)) {
    let at = instruction.operands as usize;
    let (results, sources) = operands
        [at..at + usize::from(instruction.results) + usize::from(instruction.sources)]
        .split_at(usize::from(instruction.results));
    for source in sources.iter().filter(|source| is_row(**source)) {
        visit(*source, false);
    }
    let guarded = instruction.guard != UNGUARDED;
    if guarded {
        visit(instruction.guard, false);
    }
    for result in results {
        visit(*result, !guarded);
    }
}

fn targets(code: &[Instruction], at: usize) -> (Vec<u32>, bool) {
    let instruction = &code[at];
    let falls = instruction.guard != UNGUARDED;
    match &instruction.op {
        Op::Branch(target) => (vec![*target], falls),
        Op::BranchTable(targets) => (targets.to_vec(), falls),
        Op::Return | Op::Exit | Op::Trap => (Vec::new(), falls),
        _ => (Vec::new(), true),
    }
}

fn blocks(code: &[Instruction], start: usize, registers: usize) -> Vec<Block> {
    let mut leaders = BTreeSet::from([start]);
    for at in start..code.len() {
        let (jumps, falls) = targets(code, at);
        if !jumps.is_empty() || !falls {
            leaders.insert(at + 1);
        }
        leaders.extend(jumps.into_iter().map(|target| target as usize));
    }
    leaders.retain(|leader| *leader < code.len());
    let starts: Vec<usize> = leaders.into_iter().collect();
    let block_of = |at: usize| starts.partition_point(|start| *start <= at) - 1;
    (0..starts.len())
        .map(|index| {
            let end = starts.get(index + 1).copied().unwrap_or(code.len());
            let (jumps, falls) = targets(code, end - 1);
            let mut next: Vec<usize> = jumps.into_iter().map(|target| block_of(target as usize)).collect();
            if falls && end < code.len() {
                next.push(index + 1);
            }
            Block { start: starts[index], end, next, live_in: Bits::new(registers) }
        })
        .collect()
}

/// Rewrites the operands of the code from `start` on to rows.
pub(super) fn allocate(
    code: &[Instruction],
    operands: &mut [u32],
    start: u32,
    first_operand: usize,
    types: &[Type],
) -> Allocation {
    let start = start as usize;
    let mut blocks = blocks(code, start, types.len());
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..blocks.len()).rev() {
            let mut live = live_out(&blocks, index, types.len());
            for at in (blocks[index].start..blocks[index].end).rev() {
                step_back(&code[at], operands, &mut live);
            }
            if live != blocks[index].live_in {
                blocks[index].live_in = live;
                changed = true;
            }
        }
    }
    let mut intervals: Vec<Option<(usize, usize)>> = vec![None; types.len()];
    let mut touch = |register: u32, at: usize| {
        let interval = intervals[register as usize].get_or_insert((at, at));
        interval.0 = interval.0.min(at);
        interval.1 = interval.1.max(at);
    };
    for index in 0..blocks.len() {
        let block = &blocks[index];
        // Before the block's first instruction, and after its last.
        block.live_in.iter().for_each(|register| touch(register, 2 * block.start));
        live_out(&blocks, index, types.len()).iter().for_each(|register| touch(register, 2 * block.end));
        for (at, instruction) in code.iter().enumerate().take(block.end).skip(block.start) {
            visit(instruction, operands, |register, _| touch(register, 2 * at + 1));
        }
    }
    let allocation = assign(&intervals, types);
    for operand in operands[first_operand..].iter_mut().filter(|operand| is_row(**operand)) {
        *operand = allocation.row(*operand);
    }
    allocation
}

fn live_out(blocks: &[Block], index: usize, registers: usize) -> Bits {
    let mut live = Bits::new(registers);
    for next in &blocks[index].next {
        live.union(&blocks[*next].live_in);
    }
    live
}

fn step_back(instruction: &Instruction, operands: &[u32], live: &mut Bits) {
    visit(instruction, operands, |register, overwritten| {
        if overwritten {
            live.remove(register);
        }
    });
    visit(instruction, operands, |register, overwritten| {
        if !overwritten {
            live.insert(register);
        }
    });
}

fn assign(intervals: &[Option<(usize, usize)>], types: &[Type]) -> Allocation {
    let mut order: Vec<(usize, usize, u32)> = intervals
        .iter()
        .enumerate()
        .filter_map(|(register, interval)| interval.map(|(from, to)| (from, to, register as u32)))
        .collect();
    order.sort_unstable();
    let mut allocation = Allocation { assigned: vec![0; types.len()], rows: 0, words: 0 };
    let mut active: BTreeSet<(usize, u32)> = BTreeSet::new();
    let mut free: BTreeSet<u32> = BTreeSet::new();
    let mut words = 0;
    let width = |register: u32| types[register as usize].bytes().div_ceil(4);
    for (from, to, register) in order {
        while let Some(&(end, ended)) = active.first().filter(|(end, _)| *end < from) {
            active.remove(&(end, ended));
            free.insert(allocation.assigned[ended as usize]);
            words -= width(ended);
        }
        let row = free.pop_first().unwrap_or_else(|| {
            allocation.rows += 1;
            allocation.rows - 1
        });
        allocation.assigned[register as usize] = row;
        active.insert((to, register));
        words += width(register);
        allocation.words = allocation.words.max(words);
    }
    allocation
}
