//! Initial values of variables, flattened to scalars in the order of memory.

use super::Parser;
use crate::Error;
use crate::alu::Rounding;
use crate::alu::minifloat::{self, BF16, F16};
use crate::ast::Initial;
use crate::lexer::Token;
use crate::types::Type;

impl Parser<'_> {
    /// A scalar, or braces of them. Inner braces that hold fewer values than their share of the array are
    /// filled with zeros.
    pub(super) fn initial(&mut self, ty: Type) -> Result<Vec<Initial>, Error> {
        let mut values = Vec::new();
        if !self.eat('{') {
            values.push(self.initial_scalar(ty)?);
            return Ok(values);
        }
        let mut inner: Vec<Vec<Initial>> = Vec::new();
        while !self.eat('}') {
            if *self.peek() == Token::Symbol('{') {
                inner.push(self.nested(|parser| parser.initial(ty))?);
            } else {
                values.push(self.initial_scalar(ty)?);
            }
            if !self.eat(',') {
                self.expect('}')?;
                break;
            }
        }
        let widest = inner.iter().map(Vec::len).max().unwrap_or(0);
        for mut row in inner {
            row.resize(widest, Initial::Bits(0));
            values.append(&mut row);
        }
        Ok(values)
    }

    fn initial_scalar(&mut self, ty: Type) -> Result<Initial, Error> {
        let negative = self.eat('-');
        let value = match self.next() {
            Token::Integer(value) if ty.is_float() => float_bits(ty, signed(value, negative) as f64),
            Token::Integer(value) => signed(value, negative) as u64,
            Token::F32(bits) => {
                let bits = if negative { bits ^ 0x8000_0000 } else { bits };
                match ty {
                    Type::F64 => f64::from(f32::from_bits(bits)).to_bits(),
                    _ => u64::from(bits),
                }
            }
            Token::F64(bits) => {
                let value = f64::from_bits(bits);
                float_bits(ty, if negative { -value } else { value })
            }
            Token::Word("generic") if !negative => {
                self.expect('(')?;
                let name = self.word()?.to_owned();
                let addend = self.addend()?;
                self.expect(')')?;
                let addend = addend.wrapping_add(self.addend()?);
                return Ok(Initial::Symbol { name, addend, generic: true });
            }
            Token::Word(name) if !negative => {
                let name = name.to_owned();
                let addend = self.addend()?;
                return Ok(Initial::Symbol { name, addend, generic: false });
            }
            _ => {
                self.at -= 1;
                return Err(self.unexpected("an initial value"));
            }
        };
        Ok(Initial::Bits(value))
    }

    /// `+4`, `-4` or nothing.
    pub(super) fn addend(&mut self) -> Result<i64, Error> {
        if self.eat('+') || *self.peek() == Token::Symbol('-') { self.signed_integer() } else { Ok(0) }
    }
}

fn signed(value: u64, negative: bool) -> i64 {
    if negative { (value as i64).wrapping_neg() } else { value as i64 }
}

/// A number as a value of a type: what a decimal literal means there.
pub(crate) fn float_bits(ty: Type, value: f64) -> u64 {
    match ty {
        Type::F32 => u64::from((value as f32).to_bits()),
        Type::F16 => minifloat::encode(&F16, value, Rounding::Nearest),
        Type::Bf16 => minifloat::encode(&BF16, value, Rounding::Nearest),
        _ => value.to_bits(),
    }
}
