//! Calls and returns: frames of registers and of local memory.

use super::step::{Exec, Flow, Operands, StepError, Stop};
use super::warp::{Frame, LOCAL_LIMIT, MAX_DEPTH, MAX_ROWS, Path, lanes};
use super::windows;
use crate::alu::LANES;
use crate::program::{ArgumentPlace, Call, Op, Transfer};
use crate::types::Space;

const FRAME_ALIGN: u32 = 16;

impl Exec<'_> {
    pub fn call(
        &mut self,
        path: &mut Path,
        others: &mut Vec<Path>,
        operands: Operands<'_>,
        mask: u32,
        call: &Call,
    ) -> Result<Flow, Stop> {
        let first = mask.trailing_zeros() as usize;
        let (function, same) = match call.function {
            Some(function) => (function, mask),
            None => {
                let targets = *self.row(path, operands.sources[0]);
                let target = targets[first];
                let function = windows::function_index(target)
                    .filter(|index| (*index as usize) < self.grid.program.functions.len());
                let Some(function) = function else {
                    return Err(
                        StepError::Illegal(format!("called {target:#x}, which is no function")).at(first)
                    );
                };
                (
                    function,
                    lanes(mask)
                        .filter(|lane| targets[*lane] == target)
                        .fold(0, |same, lane| same | 1 << lane),
                )
            }
        };
        let rest = path.mask & !same;
        let mut flow = Flow::Next;
        if rest != 0 {
            // The rest meets the instruction again: with another target, or to pass by where the guard is false.
            let mut other = path.clone();
            other.mask = rest;
            others.push(other);
            path.mask = same;
            flow = Flow::Switch;
        }
        let program = &self.grid.program;
        let callee = &program.functions[function as usize];
        let fp = path.sp.next_multiple_of(FRAME_ALIGN);
        let sp = fp.saturating_add(callee.frame);
        let base = path.base + program.functions[path.function as usize].registers;
        let (start, rows) = (callee.start, base + callee.registers);
        if sp > LOCAL_LIMIT || path.frames.len() >= MAX_DEPTH || rows > MAX_ROWS {
            return Err(StepError::Stack.at(first));
        }
        if self.warp.registers.len() < rows as usize {
            self.warp.registers.resize(rows as usize, [0; LANES]);
        }
        for transfer in &call.arguments {
            self.pass(path, fp, transfer, operands, same)?;
        }
        path.frames.push(Frame {
            pc: path.pc,
            function: path.function,
            base: path.base,
            fp: path.fp,
            sp: path.sp,
        });
        (path.pc, path.function, path.base, path.fp, path.sp) = (start, function, base, fp, sp);
        if !others.is_empty() {
            flow = Flow::Switch;
        }
        Ok(flow)
    }

    /// Copies an argument into the callee's frame.
    fn pass(
        &mut self,
        path: &Path,
        frame: u32,
        transfer: &Transfer,
        operands: Operands<'_>,
        mask: u32,
    ) -> Result<(), Stop> {
        let to = frame + transfer.callees;
        match transfer.callers {
            ArgumentPlace::Frame(offset) => self.copy_local(path.fp + offset, to, transfer.size, mask),
            ArgumentPlace::Operand(index) => {
                let values = *self.row(path, operands.sources[usize::from(index) - operands.results.len()]);
                for lane in lanes(mask) {
                    self.write(lane, Space::Local, u64::from(to), transfer.size as u8, values[lane])
                        .map_err(|trouble| trouble.at(lane))?;
                }
                Ok(())
            }
        }
    }

    fn copy_local(&mut self, from: u32, to: u32, size: u32, mask: u32) -> Result<(), Stop> {
        let (from, to, size) = (from as usize, to as usize, size as usize);
        for lane in lanes(mask) {
            let end = from.max(to) + size;
            if end > LOCAL_LIMIT as usize {
                return Err(StepError::Stack.at(lane));
            }
            self.local(lane, end).copy_within(from..from + size, to);
        }
        Ok(())
    }

    pub fn ret(&mut self, path: &mut Path, others: &mut Vec<Path>, mask: u32) -> Result<Flow, Stop> {
        if mask != path.mask {
            let mut staying = path.clone();
            staying.mask &= !mask;
            staying.pc += 1;
            others.push(staying);
            path.mask = mask;
        }
        let Some(frame) = path.frames.pop() else {
            return Ok(self.exit(path, mask));
        };
        let callees = path.fp;
        path.pc = frame.pc;
        (path.function, path.base, path.fp, path.sp) = (frame.function, frame.base, frame.fp, frame.sp);
        let program = &self.grid.program;
        let instruction = &program.code[path.pc as usize];
        if let Op::Call(call) = &instruction.op {
            for transfer in &call.returns {
                let from = callees + transfer.callees;
                match transfer.callers {
                    ArgumentPlace::Frame(offset) => {
                        self.copy_local(from, path.fp + offset, transfer.size, mask)?
                    }
                    ArgumentPlace::Operand(index) => {
                        let row = program.operands[instruction.operands as usize + usize::from(index)];
                        let mut values = [0; LANES];
                        for lane in lanes(mask) {
                            values[lane] = self
                                .read(lane, Space::Local, u64::from(from), transfer.size as u8)
                                .map_err(|trouble| trouble.at(lane))?;
                        }
                        self.set(path, row, &values, mask);
                    }
                }
            }
        }
        path.pc += 1;
        Ok(if others.is_empty() { Flow::Next } else { Flow::Switch })
    }

    /// `alloca`: all lanes of the path move their stack by the largest size asked for.
    pub fn allocate(&mut self, path: &mut Path, operands: Operands<'_>, mask: u32) -> Result<(), Stop> {
        let sizes = *self.row(path, operands.sources[0]);
        let largest = lanes(mask).map(|lane| sizes[lane]).max().unwrap_or(0);
        let at = path.sp.next_multiple_of(FRAME_ALIGN);
        let end = u64::from(at).saturating_add(largest);
        if end > u64::from(LOCAL_LIMIT) {
            return Err(StepError::Stack.at(mask.trailing_zeros() as usize));
        }
        path.sp = end as u32;
        self.set(path, operands.results[0], &[u64::from(at); LANES], mask);
        Ok(())
    }
}
