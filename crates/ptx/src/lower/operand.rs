//! Operands as written to operands of decoded instructions.

use super::function::{FunctionLowering, Local, Register, register_rows};
use super::symbols::Definition;
use crate::Error;
use crate::ast::{Instruction, Operand};
use crate::machine::windows;
use crate::parser::float_bits;
use crate::program::{Constant, Op};
use crate::types::{Space, Type};

/// Where an address operand leads.
pub(super) struct Address {
    pub base: u32,
    pub offset: i64,
    /// The variable named: its space, and whether the offset is relative to the frame.
    pub known: Option<PointerBase>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum PointerBase {
    Frame,
    Parameter,
}

impl FunctionLowering<'_, '_> {
    pub fn bits(&mut self, bits: u64) -> u32 {
        self.unit.constant(Constant::Bits(bits))
    }

    /// An operand that is read. `literal` is the type that a floating-point literal takes.
    pub fn source(
        &mut self,
        instruction: &Instruction,
        operand: &Operand,
        literal: Type,
    ) -> Result<u32, Error> {
        match operand {
            Operand::Integer(value) if literal.is_float() => {
                Ok(self.bits(float_bits(literal, *value as i64 as f64)))
            }
            Operand::Integer(value) => Ok(self.bits(*value)),
            Operand::F32(bits) if literal == Type::F64 => {
                Ok(self.bits(f64::from(f32::from_bits(*bits)).to_bits()))
            }
            Operand::F32(bits) => Ok(self.bits(u64::from(*bits))),
            Operand::F64(bits) if literal == Type::B32 => {
                Ok(self.bits(float_bits(Type::F32, f64::from_bits(*bits))))
            }
            Operand::F64(bits) => Ok(self.bits(float_bits(literal, f64::from_bits(*bits)))),
            Operand::Name(name) => self.named(instruction, name, 0),
            Operand::Offset(name, offset) => self.named(instruction, name, *offset),
            Operand::Member(name, index) => {
                if let Some(Local::Register(register)) = self.find(name)
                    && *index < register.rows
                {
                    return Ok(register.first + u32::from(*index));
                }
                self.special(instruction, name, Some(*index))
            }
            Operand::Not(name) => {
                let row = self.named(instruction, name, 0)?;
                let result = self.temporary(Type::Pred);
                let zero = self.bits(0);
                self.emit(Op::Alu(alu!(|a: bool| !a)), &[result], &[row, zero, zero, zero]);
                Ok(result)
            }
            Operand::Sink => Ok(self.bits(0)),
            _ => Err(self.error(instruction, "an operand is not a register, number or variable")),
        }
    }

    fn named(&mut self, instruction: &Instruction, name: &str, offset: i64) -> Result<u32, Error> {
        match self.find(name) {
            Some(Local::Register(register)) if offset == 0 && register.rows == 1 => return Ok(register.first),
            Some(Local::Register(_)) => {
                return Err(
                    self.error(instruction, format!("`{name}` cannot stand here whole or with an offset"))
                );
            }
            Some(Local::Frame { offset: at, space, .. }) => {
                let result = self.temporary(Type::B64);
                let at = i64::from(at).wrapping_add(offset);
                self.emit(Op::FrameAddress(at as u32), &[result], &[]);
                if space == Space::Param {
                    let base = self.bits(windows::LOCAL);
                    let zero = self.bits(0);
                    self.emit(
                        Op::Alu(alu!(|a: u64, b: u64| a.wrapping_add(b))),
                        &[result],
                        &[result, base, zero, zero],
                    );
                }
                return Ok(result);
            }
            Some(Local::Parameter { offset: at }) => {
                return Ok(self.bits((windows::PARAM + u64::from(at)).wrapping_add_signed(offset)));
            }
            Some(Local::Shared { offset: at }) => {
                return Ok(self.bits(u64::from(at).wrapping_add_signed(offset)));
            }
            None => {}
        }
        match self.definition(name) {
            Some(Definition::Function(index)) => Ok(self.bits(windows::function_address(index as u32))),
            Some(Definition::Global(index)) => Ok(self.unit.constant(Constant::Global(index as u32, offset))),
            Some(Definition::Shared(text, index)) => {
                let variable = self.unit.symbols.shared(text, index);
                Ok(match self.shared_variable(text, index, variable) {
                    Some(at) => self.bits(u64::from(at).wrapping_add_signed(offset)),
                    None => self.unit.constant(Constant::DynamicShared(offset)),
                })
            }
            None if self.unit.symbols.is_external(self.text, name) => {
                self.unit.unresolved.insert(name.to_owned());
                Ok(self.bits(0))
            }
            None => self.special(instruction, name, None),
        }
    }

    pub fn register(&mut self, instruction: &Instruction, operand: &Operand) -> Result<Register, Error> {
        if let Operand::Name(name) = operand {
            return match self.find(name) {
                Some(Local::Register(register)) => Ok(register),
                _ => Err(self.error(instruction, format!("`{name}` is not a declared register"))),
            };
        }
        Err(self.error(instruction, "an operand is not a register"))
    }

    /// A register that is written; `_` is one that nobody reads.
    pub fn result(&mut self, instruction: &Instruction, operand: &Operand) -> Result<u32, Error> {
        match operand {
            Operand::Sink => Ok(self.temporary(Type::B64)),
            Operand::Member(name, index) => match self.find(name) {
                Some(Local::Register(register)) if *index < register.rows => {
                    Ok(register.first + u32::from(*index))
                }
                _ => Err(self.error(instruction, format!("`{name}` is not a vector register"))),
            },
            _ => {
                let register = self.register(instruction, operand)?;
                if register.rows != 1 {
                    return Err(self.error(instruction, "a vector register cannot stand here whole"));
                }
                Ok(register.first)
            }
        }
    }

    /// The rows that a vector, vector register or scalar is written to.
    pub fn results(&mut self, instruction: &Instruction, operand: &Operand) -> Result<Vec<u32>, Error> {
        match operand {
            Operand::Vector(elements) => {
                let mut rows = Vec::new();
                for element in elements {
                    rows.extend(self.results(instruction, element)?);
                }
                Ok(rows)
            }
            Operand::Name(_) => Ok(register_rows(self.register(instruction, operand)?).collect()),
            _ => Ok(vec![self.result(instruction, operand)?]),
        }
    }

    /// The same for operands that are read.
    pub fn sources(
        &mut self,
        instruction: &Instruction,
        operand: &Operand,
        literal: Type,
    ) -> Result<Vec<u32>, Error> {
        match operand {
            Operand::Vector(elements) => {
                let mut rows = Vec::new();
                for element in elements {
                    rows.extend(self.sources(instruction, element, literal)?);
                }
                Ok(rows)
            }
            Operand::Name(name) => match self.find(name) {
                Some(Local::Register(register)) => Ok(register_rows(register).collect()),
                _ => Ok(vec![self.source(instruction, operand, literal)?]),
            },
            _ => Ok(vec![self.source(instruction, operand, literal)?]),
        }
    }

    pub fn address(&mut self, instruction: &Instruction, operand: &Operand) -> Result<Address, Error> {
        let Operand::Address(base, offset) = operand else {
            return Err(self.error(instruction, "an operand is not an address such as `[%rd1+8]`"));
        };
        let offset = *offset;
        if let Operand::Name(name) = &**base {
            let known = match self.find(name) {
                Some(Local::Frame { offset: at, .. }) => Some((at, PointerBase::Frame)),
                Some(Local::Parameter { offset: at }) => Some((at, PointerBase::Parameter)),
                _ => None,
            };
            if let Some((at, known)) = known {
                let offset = i64::from(at).wrapping_add(offset);
                return Ok(Address { base: self.bits(0), offset, known: Some(known) });
            }
        }
        let base = self.source(instruction, base, Type::B64)?;
        Ok(Address { base, offset, known: None })
    }

    /// The type of the register behind an operand, if it is one.
    pub fn register_type(&mut self, operand: &Operand) -> Option<Type> {
        match operand {
            Operand::Name(name) | Operand::Member(name, _) => match self.find(name)? {
                Local::Register(register) => Some(register.ty),
                _ => None,
            },
            _ => None,
        }
    }

    pub fn expect(
        &self,
        instruction: &Instruction,
        counts: std::ops::RangeInclusive<usize>,
    ) -> Result<(), Error> {
        let found = instruction.operands.len();
        if counts.contains(&found) {
            return Ok(());
        }
        let expected = if counts.start() == counts.end() {
            counts.start().to_string()
        } else {
            format!("{} to {}", counts.start(), counts.end())
        };
        Err(self.error(instruction, format!("found {found} operands, expected {expected}")))
    }
}
