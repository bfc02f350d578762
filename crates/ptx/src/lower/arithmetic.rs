//! Instructions of the arithmetic family, comparisons into predicates, and packed results.

use super::function::FunctionLowering;
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::alu::{self, Alu, Function, Selected};
use crate::ast::{Instruction, Operand};
use crate::program::Op;
use crate::types::Type;

impl FunctionLowering<'_, '_> {
    /// One function over lanes; unused sources are zero.
    pub fn emit_alu(&mut self, run: Alu, result: u32, sources: &[u32]) {
        let zero = self.bits(0);
        let mut padded = [zero; 4];
        padded[..sources.len()].copy_from_slice(sources);
        self.emit(Op::Alu(run), &[result], &padded);
    }

    pub fn arithmetic(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let Some(selected) = alu::select(&instruction.name, modifiers).filter(|_| modifiers.all_taken())
        else {
            return Err(self.unknown(instruction));
        };
        let Selected { function, sources, literal, sign_extend } = selected;
        self.expect(instruction, sources + 1..=sources + 1)?;
        let mut rows = Vec::with_capacity(4);
        for operand in &instruction.operands[1..] {
            rows.push(self.source(instruction, operand, literal)?);
        }
        let result = self.result(instruction, &instruction.operands[0])?;
        match function {
            Function::One(run) => {
                self.emit_alu(run, result, &rows);
                let register = self.register_type(&instruction.operands[0]).map_or(0, Type::bits);
                if let Some(width) = sign_extend.filter(|width| *width < register) {
                    self.extend(result, width, register);
                }
            }
            Function::Carry { run, reads_carry, writes_carry } => {
                let carry = self.carry();
                if reads_carry {
                    rows.push(carry);
                }
                let zero = self.bits(0);
                rows.resize(4, zero);
                let carry_out = if writes_carry { carry } else { self.temporary(Type::B32) };
                self.emit(Op::Carry(run), &[result, carry_out], &rows);
            }
        }
        Ok(())
    }

    /// `vadd4.u32.u32.u32.sat d, a, b, c`
    pub fn video(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let selected = alu::video::select(&instruction.name, modifiers);
        let Some((run, how)) = selected.filter(|_| modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        self.expect(instruction, 4..=4)?;
        let mut rows = Vec::with_capacity(4);
        for operand in &instruction.operands[1..] {
            rows.push(self.source(instruction, operand, Type::B32)?);
        }
        rows.push(self.bits(how));
        let result = self.result(instruction, &instruction.operands[0])?;
        self.emit_alu(run, result, &rows);
        Ok(())
    }

    fn extend(&mut self, row: u32, from: u32, to: u32) {
        let run: Alu = match (from, to) {
            (8, 16) => alu!(|a: i8| i16::from(a)),
            (8, 32) => alu!(|a: i8| i32::from(a)),
            (8, _) => alu!(|a: i8| i64::from(a)),
            (16, 32) => alu!(|a: i16| i32::from(a)),
            (16, _) => alu!(|a: i16| i64::from(a)),
            _ => alu!(|a: i32| i64::from(a)),
        };
        self.emit_alu(run, row, &[row]);
    }

    /// `setp.lt.and.f32 p|q, a, b, c`
    pub fn set_predicate(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
    ) -> Result<(), Error> {
        let combine = combination(modifiers);
        let Some((run, ty)) = alu::comparison(modifiers).filter(|_| modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        let count = 3 + usize::from(combine.is_some());
        self.expect(instruction, count..=count)?;
        let (first, second) = match &instruction.operands[0] {
            Operand::Pair(first, second) => (&**first, Some(&**second)),
            single => (single, None),
        };
        let first = self.result(instruction, first)?;
        let second = second.map(|second| self.result(instruction, second)).transpose()?;
        let a = self.source(instruction, &instruction.operands[1], ty)?;
        let b = self.source(instruction, &instruction.operands[2], ty)?;
        let c = match combine {
            Some(run) => Some((run, self.source(instruction, &instruction.operands[3], Type::Pred)?)),
            None => None,
        };
        if matches!(ty, Type::F16x2 | Type::Bf16x2) {
            let Some(second) = second else {
                return Err(self.error(instruction, "a packed comparison has two results"));
            };
            let low = self.temporary(Type::Pred);
            self.emit_alu(run, low, &[a, b]);
            let [a, b] = [a, b].map(|row| self.upper(row));
            let high = self.temporary(Type::Pred);
            self.emit_alu(run, high, &[a, b]);
            for row in [low, high] {
                if let Some((combine, c)) = c {
                    self.emit_alu(combine, row, &[row, c]);
                }
            }
            self.copy(first, low);
            self.copy(second, high);
            return Ok(());
        }
        if c.is_none() && second.is_none() {
            self.emit_alu(run, first, &[a, b]);
            return Ok(());
        }
        let compared = self.temporary(Type::Pred);
        self.emit_alu(run, compared, &[a, b]);
        let inverse = self.temporary(Type::Pred);
        if second.is_some() {
            self.emit_alu(alu!(|a: bool| !a), inverse, &[compared]);
        }
        if let Some((combine, c)) = c {
            self.emit_alu(combine, compared, &[compared, c]);
            if second.is_some() {
                self.emit_alu(combine, inverse, &[inverse, c]);
            }
        }
        if let Some(second) = second {
            self.copy(second, inverse);
        }
        self.copy(first, compared);
        Ok(())
    }

    /// `set.lt.and.f32.s32 d, a, b, c`
    pub fn set(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let combine = combination(modifiers);
        let ftz = modifiers.has("ftz");
        let mut types = instruction.modifiers.iter().filter_map(|word| Type::parse(word));
        let (Some(to), Some(from)) = (types.next(), types.next()) else {
            return Err(self.unknown(instruction));
        };
        // The comparison's own type is the second one.
        let words: Vec<String> = instruction
            .modifiers
            .iter()
            .filter(|word| Type::parse(word).is_none() && !matches!(word.as_str(), "and" | "or" | "xor"))
            .cloned()
            .chain(instruction.modifiers.iter().rev().find(|word| Type::parse(word) == Some(from)).cloned())
            .collect();
        let mut own = Modifiers::new(&words);
        let packed = matches!(from, Type::F16x2 | Type::Bf16x2);
        let element = match to {
            Type::F16x2 => Type::F16,
            Type::Bf16x2 => Type::Bf16,
            Type::U32 | Type::S32 if packed => Type::U16,
            _ => to,
        };
        let (Some((run, _)), Some(truth)) =
            (alu::comparison(&mut own).filter(|_| own.all_taken()), alu::truth(element))
        else {
            return Err(self.unknown(instruction));
        };
        if ftz && !from.is_float() && !packed {
            return Err(self.unknown(instruction));
        }
        let count = 3 + usize::from(combine.is_some());
        self.expect(instruction, count..=count)?;
        let result = self.result(instruction, &instruction.operands[0])?;
        let a = self.source(instruction, &instruction.operands[1], from)?;
        let b = self.source(instruction, &instruction.operands[2], from)?;
        let c = match combine {
            Some(run) => Some((run, self.source(instruction, &instruction.operands[3], Type::Pred)?)),
            None => None,
        };
        let one = |lowering: &mut Self, a: u32, b: u32| {
            let row = lowering.temporary(Type::B32);
            lowering.emit_alu(run, row, &[a, b]);
            if let Some((combine, c)) = c {
                lowering.emit_alu(combine, row, &[row, c]);
            }
            lowering.emit_alu(truth, row, &[row]);
            row
        };
        let low = one(self, a, b);
        if packed {
            let [a, b] = [a, b].map(|row| self.upper(row));
            let high = one(self, a, b);
            self.emit_alu(alu!(|low: u32, high: u32| low | high << 16), result, &[low, high]);
        } else {
            self.copy(result, low);
        }
        Ok(())
    }

    pub fn copy(&mut self, to: u32, from: u32) {
        self.emit_alu(alu!(|a: u64| a), to, &[from]);
    }

    fn upper(&mut self, row: u32) -> u32 {
        let result = self.temporary(Type::B32);
        self.emit_alu(alu!(|a: u32| a >> 16), result, &[row]);
        result
    }

    /// `cvt.pack.sat.u8.s32.b32 d, a, b, c`
    pub fn convert_pack(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
    ) -> Result<(), Error> {
        modifiers.take("pack");
        let saturates = modifiers.take("sat");
        let types = [modifiers.take_type(), modifiers.take_type(), modifiers.take_type()];
        let run: Alu = match types {
            [Some(Type::U16), Some(Type::S32), None] => {
                alu!(|a: i32, b: i32| (a.clamp(0, 0xffff) as u32) << 16 | b.clamp(0, 0xffff) as u32)
            }
            [Some(Type::S16), Some(Type::S32), None] => alu!(|a: i32, b: i32| {
                let one = |x: i32| x.clamp(-0x8000, 0x7fff) as u32 & 0xffff;
                one(a) << 16 | one(b)
            }),
            [Some(Type::U8), Some(Type::S32), Some(Type::B32)] => alu!(|a: i32, b: i32, c: u32| {
                let one = |x: i32| x.clamp(0, 0xff) as u32;
                c << 16 | one(a) << 8 | one(b)
            }),
            [Some(Type::S8), Some(Type::S32), Some(Type::B32)] => alu!(|a: i32, b: i32, c: u32| {
                let one = |x: i32| x.clamp(-0x80, 0x7f) as u32 & 0xff;
                c << 16 | one(a) << 8 | one(b)
            }),
            _ => return Err(self.unknown(instruction)),
        };
        if !saturates || !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        let count = if types[2].is_some() { 4 } else { 3 };
        self.expect(instruction, count..=count)?;
        let mut rows = Vec::new();
        for operand in &instruction.operands[1..] {
            rows.push(self.source(instruction, operand, Type::S32)?);
        }
        let result = self.result(instruction, &instruction.operands[0])?;
        self.emit_alu(run, result, &rows);
        Ok(())
    }
}

fn combination(modifiers: &mut Modifiers) -> Option<Alu> {
    modifiers.one_of::<Alu>(&[
        ("and", alu!(|a: bool, b: bool| a & b)),
        ("or", alu!(|a: bool, b: bool| a | b)),
        ("xor", alu!(|a: bool, b: bool| a ^ b)),
    ])
}
