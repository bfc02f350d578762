//! Instructions among the threads of a warp.

use super::function::FunctionLowering;
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::ast::{Instruction, Operand};
use crate::program::{Op, Shuffle, Vote};
use crate::types::Type;

impl FunctionLowering<'_, '_> {
    pub fn warp(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let sync = modifiers.take("sync");
        match instruction.name.as_str() {
            "vote" => self.vote(instruction, modifiers, sync),
            "match" => self.matching(instruction, modifiers, sync),
            "shfl" => self.shuffle(instruction, modifiers, sync),
            "redux" => self.reduce(instruction, modifiers, sync),
            "elect" => self.elect(instruction, modifiers, sync),
            _ => {
                modifiers.take("b32");
                if sync || !modifiers.all_taken() {
                    return Err(self.unknown(instruction));
                }
                self.expect(instruction, 1..=1)?;
                let result = self.result(instruction, &instruction.operands[0])?;
                self.emit(Op::ActiveMask, &[result], &[]);
                Ok(())
            }
        }
    }

    /// The mask operand, or all lanes for the forms without one.
    fn mask(&mut self, instruction: &Instruction, at: usize, sync: bool) -> Result<u32, Error> {
        if sync {
            self.source(instruction, &instruction.operands[at], Type::B32)
        } else {
            Ok(self.bits(u64::from(u32::MAX)))
        }
    }

    fn vote(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
        sync: bool,
    ) -> Result<(), Error> {
        let kinds =
            [("all", Vote::All), ("any", Vote::Any), ("uni", Vote::Uniform), ("ballot", Vote::Ballot)];
        let kind = modifiers.one_of(&kinds);
        modifiers.take_type();
        let Some(kind) = kind.filter(|_| modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        let count = 2 + usize::from(sync);
        self.expect(instruction, count..=count)?;
        let predicate = self.source(instruction, &instruction.operands[1], Type::Pred)?;
        let mask = self.mask(instruction, 2, sync)?;
        let result = self.result(instruction, &instruction.operands[0])?;
        self.emit(Op::Vote { kind, sync }, &[result], &[predicate, mask]);
        Ok(())
    }

    fn matching(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
        sync: bool,
    ) -> Result<(), Error> {
        let all = modifiers.one_of(&[("any", false), ("all", true)]);
        let ty = modifiers.take_type();
        let (Some(all), Some(Type::B32 | Type::B64), true, true) = (all, ty, sync, modifiers.all_taken())
        else {
            return Err(self.unknown(instruction));
        };
        self.expect(instruction, 3..=3)?;
        let (result, predicate) = self.pair(instruction)?;
        let a = self.source(instruction, &instruction.operands[1], Type::B64)?;
        let mask = self.mask(instruction, 2, true)?;
        self.emit(Op::Match { all }, &[result, predicate], &[a, mask]);
        Ok(())
    }

    /// `d|p`, or `d` and a register that nobody reads.
    fn pair(&mut self, instruction: &Instruction) -> Result<(u32, u32), Error> {
        match &instruction.operands[0] {
            Operand::Pair(first, second) => {
                Ok((self.result(instruction, first)?, self.result(instruction, second)?))
            }
            single => Ok((self.result(instruction, single)?, self.temporary(Type::Pred))),
        }
    }

    fn shuffle(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
        sync: bool,
    ) -> Result<(), Error> {
        let modes = [
            ("up", Shuffle::Up),
            ("down", Shuffle::Down),
            ("bfly", Shuffle::Butterfly),
            ("idx", Shuffle::Index),
        ];
        let mode = modifiers.one_of(&modes);
        let ty = modifiers.take_type();
        let (Some(mode), Some(Type::B32), true) = (mode, ty, modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        let count = 4 + usize::from(sync);
        self.expect(instruction, count..=count)?;
        let (result, predicate) = self.pair(instruction)?;
        let mut sources = Vec::with_capacity(4);
        for operand in &instruction.operands[1..4] {
            sources.push(self.source(instruction, operand, Type::B32)?);
        }
        sources.push(self.mask(instruction, 4, sync)?);
        self.emit(Op::Shuffle { mode, sync }, &[result, predicate], &sources);
        Ok(())
    }

    fn reduce(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
        sync: bool,
    ) -> Result<(), Error> {
        let operation = modifiers.take_first();
        let nan = modifiers.take("NaN");
        let absolute = modifiers.take("abs");
        let ty = modifiers.take_type();
        let fold: fn(u64, u64) -> u64 = match (operation, ty) {
            _ if nan || absolute => return Err(self.unknown(instruction)),
            (Some("add"), Some(Type::U32 | Type::S32)) => |a, b| u64::from((a as u32).wrapping_add(b as u32)),
            (Some("min"), Some(Type::U32)) => |a, b| a.min(b),
            (Some("max"), Some(Type::U32)) => |a, b| a.max(b),
            (Some("min"), Some(Type::S32)) => |a, b| u64::from((a as i32).min(b as i32) as u32),
            (Some("max"), Some(Type::S32)) => |a, b| u64::from((a as i32).max(b as i32) as u32),
            (Some("and"), Some(Type::B32)) => |a, b| a & b,
            (Some("or"), Some(Type::B32)) => |a, b| a | b,
            (Some("xor"), Some(Type::B32)) => |a, b| a ^ b,
            _ => return Err(self.unknown(instruction)),
        };
        if !sync || !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        self.expect(instruction, 3..=3)?;
        let a = self.source(instruction, &instruction.operands[1], Type::U32)?;
        let mask = self.mask(instruction, 2, true)?;
        let result = self.result(instruction, &instruction.operands[0])?;
        self.emit(Op::Reduce(fold), &[result], &[a, mask]);
        Ok(())
    }

    fn elect(&mut self, instruction: &Instruction, modifiers: &Modifiers, sync: bool) -> Result<(), Error> {
        if !sync || !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        self.expect(instruction, 2..=2)?;
        let (result, predicate) = self.pair(instruction)?;
        let mask = self.mask(instruction, 1, true)?;
        self.emit(Op::Elect, &[result, predicate], &[mask]);
        Ok(())
    }
}
