//! The instruction's name decides who decodes it; branches and ends are decoded here.

use super::function::FunctionLowering;
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::ast::{Instruction, Operand};
use crate::program::Op;
use crate::types::Type;

impl<'a> FunctionLowering<'_, 'a> {
    pub fn instruction(
        &mut self,
        instruction: &'a Instruction,
        modifiers: &mut Modifiers,
    ) -> Result<(), Error> {
        match instruction.name.as_str() {
            "mov" => self.mov(instruction, modifiers),
            "cvta" | "isspacep" | "mapa" | "getctarank" => self.address_conversion(instruction, modifiers),
            "alloca" | "stacksave" | "stackrestore" => self.stack(instruction, modifiers),
            "ld" | "ldu" => self.load(instruction, modifiers),
            "st" => self.store(instruction, modifiers),
            "prefetch" | "prefetchu" | "applypriority" | "discard" => self.advice(instruction, modifiers),
            "atom" | "red" => self.atomic(instruction, modifiers),
            "cp" => self.asynchronous(instruction, modifiers),
            "mbarrier" => self.mbarrier(instruction, modifiers),
            "tensormap" => self.tensor_map(instruction, modifiers),
            "setp" => self.set_predicate(instruction, modifiers),
            "set" => self.set(instruction, modifiers),
            "cvt" if modifiers.has("pack") => self.convert_pack(instruction, modifiers),
            "bra" => self.branch(instruction, modifiers),
            "brx" => self.branch_table(instruction, modifiers),
            "call" => self.call(instruction, modifiers),
            "ret" => {
                modifiers.take("uni");
                self.plain(instruction, modifiers)?;
                self.leave();
                Ok(())
            }
            "exit" => self.simple(instruction, modifiers, Op::Exit),
            "trap" => self.simple(instruction, modifiers, Op::Trap),
            "brkpt" | "pmevent" => self.ignored(instruction, modifiers, &[]),
            "nanosleep" => {
                modifiers.take("u32");
                self.expect(instruction, 1..=1)?;
                self.ignored(instruction, modifiers, &[])?;
                let nanoseconds = self.source(instruction, &instruction.operands[0], Type::U32)?;
                self.emit(Op::Sleep, &[], &[nanoseconds]);
                Ok(())
            }
            "setmaxnreg" => self.ignored(instruction, modifiers, &["inc", "dec", "sync", "aligned", "u32"]),
            "griddepcontrol" => self.ignored(instruction, modifiers, &["launch_dependents", "wait"]),
            "bar" | "barrier" => self.barrier(instruction, modifiers),
            "membar" | "fence" => self.fence(instruction, modifiers),
            "vote" | "match" | "shfl" | "redux" | "elect" | "activemask" => self.warp(instruction, modifiers),
            "mma" => self.multiply_matrix(instruction, modifiers),
            "wmma" => self.fragment(instruction, modifiers),
            "tex" | "tld4" => self.texture_fetch(instruction, modifiers),
            "suld" | "sust" => self.surface_access(instruction, modifiers),
            "txq" | "suq" => self.view_query(instruction, modifiers),
            "istypep" => self.view_type(instruction, modifiers),
            "createpolicy" => self.cache_policy(instruction, modifiers),
            "ldmatrix" | "stmatrix" => self.move_matrix(instruction, modifiers),
            name if name.starts_with('v') => self.video(instruction, modifiers),
            _ => self.arithmetic(instruction, modifiers),
        }
    }

    fn plain(&self, instruction: &Instruction, modifiers: &Modifiers) -> Result<(), Error> {
        if modifiers.all_taken() { self.expect(instruction, 0..=0) } else { Err(self.unknown(instruction)) }
    }

    fn simple(&mut self, instruction: &Instruction, modifiers: &Modifiers, op: Op) -> Result<(), Error> {
        self.plain(instruction, modifiers)?;
        self.emit(op, &[], &[]);
        Ok(())
    }

    fn ignored(
        &self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
        words: &[&str],
    ) -> Result<(), Error> {
        modifiers.take_any(words);
        if modifiers.all_taken() { Ok(()) } else { Err(self.unknown(instruction)) }
    }

    fn label(&self, instruction: &Instruction, name: &str) -> Result<u32, Error> {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| scope.labels.get(name).copied())
            .ok_or_else(|| self.error(instruction, format!("there is no label `{name}`")))
    }

    fn branch(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        modifiers.take("uni");
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        self.expect(instruction, 1..=1)?;
        let Operand::Name(name) = &instruction.operands[0] else {
            return Err(self.error(instruction, "the operand is not a label"));
        };
        let label = self.label(instruction, name)?;
        self.emit(Op::Branch(label), &[], &[]);
        Ok(())
    }

    fn branch_table(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        modifiers.take("uni");
        if !modifiers.take("idx") || !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        self.expect(instruction, 2..=2)?;
        let index = self.source(instruction, &instruction.operands[0], Type::U32)?;
        let targets = match &instruction.operands[1] {
            Operand::Name(name) => {
                self.scopes.iter().rev().find_map(|scope| scope.targets.get(name.as_str()).copied())
            }
            _ => None,
        };
        let Some(targets) = targets else {
            return Err(self.error(instruction, "the second operand is not a list of branch targets"));
        };
        let mut labels = Vec::with_capacity(targets.len());
        for target in targets {
            labels.push(self.label(instruction, target)?);
        }
        self.emit(Op::BranchTable(labels.into()), &[], &[index]);
        Ok(())
    }
}
