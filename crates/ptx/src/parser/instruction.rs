//! One instruction with its guard and operands.

use super::Parser;
use crate::Error;
use crate::ast::{Instruction, Operand};
use crate::lexer::Token;

impl Parser<'_> {
    pub(super) fn instruction(&mut self) -> Result<Instruction, Error> {
        let mut guard = None;
        if self.eat('@') {
            let negated = self.eat('!');
            guard = Some((self.word()?.to_owned(), negated));
        }
        let line = self.line();
        let name = self.word()?.to_owned();
        let mut modifiers = Vec::new();
        while let Token::Dot(modifier) = *self.peek() {
            modifiers.push(modifier.to_owned());
            self.at += 1;
        }
        let mut operands = Vec::new();
        while !self.eat(';') {
            operands.push(self.operand()?);
            if !self.eat(',') {
                self.expect(';')?;
                break;
            }
        }
        Ok(Instruction { line, guard, name, modifiers, operands })
    }

    fn operand(&mut self) -> Result<Operand, Error> {
        let first = self.nested(Self::simple_operand)?;
        if self.eat('|') {
            let second = self.nested(Self::simple_operand)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn operands_until(&mut self, close: char) -> Result<Vec<Operand>, Error> {
        let mut operands = Vec::new();
        while !self.eat(close) {
            operands.push(self.operand()?);
            if !self.eat(',') {
                self.expect(close)?;
                break;
            }
        }
        Ok(operands)
    }

    fn simple_operand(&mut self) -> Result<Operand, Error> {
        match self.next() {
            Token::Word("_") => Ok(Operand::Sink),
            Token::Word("WARP_SZ") => Ok(Operand::Integer(32)),
            Token::Word(name) => self.named(name),
            Token::Integer(value) => Ok(Operand::Integer(value)),
            Token::F32(bits) => Ok(Operand::F32(bits)),
            Token::F64(bits) => Ok(Operand::F64(bits)),
            Token::Symbol('-') => match self.next() {
                Token::Integer(value) => Ok(Operand::Integer(value.wrapping_neg())),
                Token::F32(bits) => Ok(Operand::F32(bits ^ 1 << 31)),
                Token::F64(bits) => Ok(Operand::F64(bits ^ 1 << 63)),
                _ => {
                    self.at -= 1;
                    Err(self.unexpected("a number after `-`"))
                }
            },
            Token::Symbol('~') => Ok(Operand::Integer(!self.integer()?)),
            Token::Symbol('!') => Ok(Operand::Not(self.word()?.to_owned())),
            Token::Symbol('{') => Ok(Operand::Vector(self.operands_until('}')?)),
            Token::Symbol('(') => Ok(Operand::Group(self.operands_until(')')?)),
            Token::Symbol('[') => {
                let base = match self.next() {
                    Token::Word(name) => Operand::Name(name.to_owned()),
                    Token::Integer(value) => Operand::Integer(value),
                    _ => {
                        self.at -= 1;
                        return Err(self.unexpected("an address"));
                    }
                };
                let offset = self.addend()?;
                let address = Operand::Address(Box::new(base), offset);
                if self.eat(',') {
                    return Ok(Operand::Coordinates(Box::new(address), self.operands_until(']')?));
                }
                self.expect(']')?;
                Ok(address)
            }
            _ => {
                self.at -= 1;
                Err(self.unexpected("an operand"))
            }
        }
    }

    fn named(&mut self, name: &str) -> Result<Operand, Error> {
        if let Token::Dot(member) = *self.peek() {
            let index = match member {
                "x" | "r" => 0,
                "y" | "g" => 1,
                "z" | "b" => 2,
                "w" | "a" => 3,
                _ => return Err(self.unexpected("`.x`, `.y`, `.z` or `.w`")),
            };
            self.at += 1;
            return Ok(Operand::Member(name.to_owned(), index));
        }
        if matches!(self.peek(), Token::Symbol('+' | '-')) {
            return Ok(Operand::Offset(name.to_owned(), self.addend()?));
        }
        // The address of an element of an array: `a[3]`.
        if let Some(bytes) = self.elements.get(name).copied().filter(|_| *self.peek() == Token::Symbol('[')) {
            self.at += 1;
            let index = self.signed_integer()?;
            self.expect(']')?;
            return Ok(Operand::Offset(name.to_owned(), index.wrapping_mul(bytes as i64)));
        }
        Ok(Operand::Name(name.to_owned()))
    }
}
