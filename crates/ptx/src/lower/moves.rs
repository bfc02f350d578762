//! `mov` in all its forms, and conversions of addresses.

use super::function::FunctionLowering;
use crate::Error;
use crate::alu::Alu;
use crate::alu::modifiers::Modifiers;
use crate::ast::Instruction;
use crate::machine::windows::{self, LOCAL, PARAM, SHARED};
use crate::program::{Op, Special};
use crate::types::Type;

impl FunctionLowering<'_, '_> {
    pub fn mov(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let vector = modifiers.one_of(&[("v2", 2), ("v4", 4)]);
        let Some(ty) = modifiers.take_type().filter(|_| modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        self.expect(instruction, 2..=2)?;
        let (to, from) = (&instruction.operands[0], &instruction.operands[1]);
        let from = self.sources(instruction, from, ty)?;
        let to = self.results(instruction, to)?;
        match (to.len(), from.len()) {
            (a, b) if a == b => {
                // A swap must not read what it has already written.
                let held: Vec<u32> =
                    if a == 1 { from } else { from.iter().map(|row| self.held(*row)).collect() };
                for (to, from) in to.into_iter().zip(held) {
                    self.emit_alu(truncation(if vector.is_some() { Type::B64 } else { ty }), to, &[from]);
                }
                Ok(())
            }
            (rows, count) if rows < count && count % rows == 0 => self.pack(instruction, ty, &to, &from),
            (count, rows) if rows < count && count % rows == 0 => self.unpack(instruction, ty, &to, &from),
            _ => Err(self.error(instruction, "the vectors differ in length")),
        }
    }

    fn held(&mut self, row: u32) -> u32 {
        let copy = self.temporary(Type::B64);
        self.copy(copy, row);
        copy
    }

    /// Bits of an element, where `total` rows of the type's width are cut into `count`.
    fn element_bits(&self, instruction: &Instruction, ty: Type, count: usize) -> Result<u32, Error> {
        let bits = ty.bits() / count as u32;
        if matches!(bits, 8 | 16 | 32 | 64) {
            Ok(bits)
        } else {
            Err(self.error(instruction, format!("{count} elements do not make up `.b{}`", ty.bits())))
        }
    }

    fn pack(&mut self, instruction: &Instruction, ty: Type, to: &[u32], from: &[u32]) -> Result<(), Error> {
        let bits = self.element_bits(instruction, ty, from.len())?;
        let run: Alu = match bits {
            8 => alu!(|a: u64, b: u8, at: u32| a | u64::from(b) << at),
            16 => alu!(|a: u64, b: u16, at: u32| a | u64::from(b) << at),
            32 => alu!(|a: u64, b: u32, at: u32| a | u64::from(b) << at),
            _ => return Err(self.error(instruction, "the vectors differ in length")),
        };
        let each = from.len() / to.len();
        for (row, group) in to.iter().zip(from.chunks(each)) {
            let sum = self.temporary(Type::B64);
            let mut so_far = self.bits(0);
            for (index, element) in group.iter().enumerate() {
                let at = self.bits(u64::from(bits) * index as u64);
                self.emit_alu(run, sum, &[so_far, *element, at]);
                so_far = sum;
            }
            self.copy(*row, sum);
        }
        Ok(())
    }

    fn unpack(&mut self, instruction: &Instruction, ty: Type, to: &[u32], from: &[u32]) -> Result<(), Error> {
        let bits = self.element_bits(instruction, ty, to.len())?;
        let run: Alu = match bits {
            8 => alu!(|a: u64, at: u32| (a >> at) as u8),
            16 => alu!(|a: u64, at: u32| (a >> at) as u16),
            32 => alu!(|a: u64, at: u32| (a >> at) as u32),
            _ => return Err(self.error(instruction, "the vectors differ in length")),
        };
        let each = to.len() / from.len();
        for (row, group) in from.iter().zip(to.chunks(each)) {
            let whole = self.held(*row);
            for (index, element) in group.iter().enumerate() {
                let at = self.bits(u64::from(bits) * index as u64);
                self.emit_alu(run, *element, &[whole, at]);
            }
        }
        Ok(())
    }

    /// `cvta`, `isspacep`, `mapa`, `getctarank`
    pub fn address_conversion(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
    ) -> Result<(), Error> {
        let to_space = modifiers.take("to");
        let space = modifiers
            .take_with(|word| SPACES.iter().copied().find(|known| *known == word))
            .unwrap_or("generic");
        let ty = modifiers.take_type();
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        let count = if instruction.name == "mapa" { 3 } else { 2 };
        self.expect(instruction, count..=count)?;
        let a = self.source(instruction, &instruction.operands[1], Type::B64)?;
        let result = self.result(instruction, &instruction.operands[0])?;
        let narrow = ty.is_some_and(|ty| ty.bits() == 32);
        let shared = space.starts_with("shared");
        let run: Alu = match (instruction.name.as_str(), space, to_space) {
            ("cvta", _, true) if shared && narrow => alu!(|a: u64| a.wrapping_sub(SHARED) as u32),
            ("cvta", _, true) if shared => alu!(|a: u64| a.wrapping_sub(SHARED)),
            ("cvta", "local", true) => alu!(|a: u64| a.wrapping_sub(LOCAL)),
            ("cvta", _, false) if shared => alu!(|a: u64| a.wrapping_add(SHARED)),
            ("cvta", "local", false) => alu!(|a: u64| a.wrapping_add(LOCAL)),
            ("cvta", "global" | "const" | "param" | "param::entry", _) => alu!(|a: u64| a),
            ("isspacep", _, false) if shared => alu!(|a: u64| windows::in_window(a, SHARED)),
            ("isspacep", "local", false) => alu!(|a: u64| windows::in_window(a, LOCAL)),
            ("isspacep", "param" | "param::entry", false) => alu!(|a: u64| windows::in_window(a, PARAM)),
            ("isspacep", "const", false) => alu!(|_a: u64| false),
            ("isspacep", "global", false) => alu!(|a: u64| !windows::is_window_address(a)),
            ("mapa", _, false) => {
                let rank = self.source(instruction, &instruction.operands[2], Type::U32)?;
                self.emit_alu(alu!(|a: u64, rank: u64| windows::of_rank(a, rank)), result, &[a, rank]);
                return Ok(());
            }
            ("getctarank", ..) => {
                self.emit(Op::Special(Special::RankOf), &[result], &[a]);
                return Ok(());
            }
            _ => return Err(self.unknown(instruction)),
        };
        self.emit_alu(run, result, &[a]);
        Ok(())
    }

    /// `alloca`, `stacksave`, `stackrestore`
    pub fn stack(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        modifiers.take_type();
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        match instruction.name.as_str() {
            "stacksave" => {
                self.expect(instruction, 1..=1)?;
                let result = self.result(instruction, &instruction.operands[0])?;
                self.emit(Op::StackSave, &[result], &[]);
            }
            "stackrestore" => {
                self.expect(instruction, 1..=1)?;
                let a = self.source(instruction, &instruction.operands[0], Type::B64)?;
                self.emit(Op::StackRestore, &[], &[a]);
            }
            _ => {
                self.expect(instruction, 2..=3)?;
                let size = self.source(instruction, &instruction.operands[1], Type::B64)?;
                let result = self.result(instruction, &instruction.operands[0])?;
                self.emit(Op::Allocate, &[result], &[size]);
            }
        }
        Ok(())
    }
}

const SPACES: [&str; 8] =
    ["global", "const", "shared", "shared::cta", "shared::cluster", "local", "param", "param::entry"];

fn truncation(ty: Type) -> Alu {
    match ty {
        Type::Pred => alu!(|a: bool| a),
        _ => match ty.bytes() {
            1 => alu!(|a: u8| a),
            2 => alu!(|a: u16| a),
            4 => alu!(|a: u32| a),
            _ => alu!(|a: u64| a),
        },
    }
}
