//! Variables, formal parameters, registers, labels and what follows them.

use super::Parser;
use crate::Error;
use crate::ast::{Linkage, Prototype, Registers, Statement, Variable};
use crate::lexer::Token;
use crate::types::{Space, Type};

impl Parser<'_> {
    /// `.global .align 4 .v2 .f32 a[3] = {...}, b;`
    pub(super) fn variables(&mut self, linkage: Linkage) -> Result<Vec<Variable>, Error> {
        let space = match self.next() {
            Token::Dot("global") => Space::Global,
            Token::Dot("const") => Space::Const,
            Token::Dot("shared" | "shared::cta") => Space::Shared,
            Token::Dot("local") => Space::Local,
            Token::Dot("param") => Space::Param,
            _ => {
                self.at -= 1;
                return Err(self.unexpected("a declaration"));
            }
        };
        let mut variables = Vec::new();
        let (ty, vector, align) = self.variable_type()?;
        loop {
            variables.push(self.declarator(Some(space), linkage, ty, vector, align)?);
            if !self.eat(',') {
                break;
            }
        }
        self.expect(';')?;
        Ok(variables)
    }

    /// Alignment, attributes, vector width and type, in any order.
    fn variable_type(&mut self) -> Result<(Type, u32, Option<u32>), Error> {
        let (mut vector, mut align) = (1, None);
        loop {
            let line = self.line();
            match *self.peek() {
                Token::Dot("align") => {
                    self.at += 1;
                    let value = self.integer32()?;
                    if !value.is_power_of_two() || value > 4096 {
                        return Err(Error::syntax(line, format!("{value} is not an alignment")));
                    }
                    align = Some(value);
                }
                Token::Dot("attribute") => {
                    self.at += 1;
                    self.skip_group()?;
                }
                Token::Dot("v2") => {
                    self.at += 1;
                    vector = 2;
                }
                Token::Dot("v4") => {
                    self.at += 1;
                    vector = 4;
                }
                Token::Dot(name) => {
                    let Some(ty) = Type::parse(name) else {
                        return Err(self.unexpected("a type that the emulated GPU knows"));
                    };
                    self.at += 1;
                    return Ok((ty, vector, align));
                }
                _ => return Err(self.unexpected("a type")),
            }
        }
    }

    fn declarator(
        &mut self,
        space: Option<Space>,
        linkage: Linkage,
        ty: Type,
        vector: u32,
        align: Option<u32>,
    ) -> Result<Variable, Error> {
        let line = self.line();
        let word = self.word()?;
        let name = word.to_owned();
        let element = u64::from(ty.bytes()) * u64::from(vector);
        self.elements.insert(word, element);
        let mut count: u64 = 1;
        let mut unsized_array = false;
        let too_large = || Error::syntax(line, format!("`{name}` is too large"));
        while self.eat('[') {
            if self.eat(']') {
                unsized_array = true;
                continue;
            }
            count = count.checked_mul(self.integer()?).ok_or_else(too_large)?;
            self.expect(']')?;
        }
        let mut size = count.checked_mul(element).filter(|size| *size < 1 << 40).ok_or_else(too_large)?;
        let mut initial = None;
        if self.eat('=') {
            let values = self.nested(|parser| parser.initial(ty))?;
            if unsized_array {
                size = values.len() as u64 * u64::from(ty.bytes());
                unsized_array = false;
            }
            if values.len() as u64 * u64::from(ty.bytes()) > size {
                return Err(Error::syntax(line, format!("`{name}` has more initial values than elements")));
            }
            initial = Some(values);
        }
        if unsized_array {
            size = 0;
        }
        let align = align.unwrap_or_else(|| element.next_power_of_two().clamp(1, 16) as u32);
        Ok(Variable { line, name, space, linkage, ty, align, size, unsized_array, initial })
    }

    /// The parenthesised formal parameters of a function or prototype.
    pub(super) fn formals(&mut self) -> Result<Vec<Variable>, Error> {
        self.expect('(')?;
        let mut formals = Vec::new();
        if self.eat(')') {
            return Ok(formals);
        }
        loop {
            let space = match self.next() {
                Token::Dot("param") => Some(Space::Param),
                Token::Dot("reg") => None,
                _ => {
                    self.at -= 1;
                    return Err(self.unexpected("`.param` or `.reg`"));
                }
            };
            let (ty, vector, mut align) = self.variable_type()?;
            if self.eat_dot("ptr") {
                for space in ["global", "shared", "const", "local"] {
                    if self.eat_dot(space) {
                        break;
                    }
                }
                // This alignment is the pointee's.
                if self.eat_dot("align") {
                    self.integer()?;
                }
            } else if self.eat_dot("align") {
                align = Some(self.integer32()?);
            }
            let formal = self.declarator(space, Linkage::Private, ty, vector, align)?;
            formals.push(formal);
            if self.eat(')') {
                return Ok(formals);
            }
            self.expect(',')?;
        }
    }

    /// What follows `.reg`.
    pub(super) fn registers(&mut self) -> Result<Registers, Error> {
        let (ty, vector, _) = self.variable_type()?;
        let mut names = Vec::new();
        loop {
            let name = self.word()?.to_owned();
            let count = if self.eat('<') {
                let count = self.integer32()?;
                self.expect('>')?;
                Some(count)
            } else {
                None
            };
            names.push((name, count));
            if !self.eat(',') {
                break;
            }
        }
        self.expect(';')?;
        Ok(Registers { ty, vector: vector as u8, names })
    }

    /// What follows `name:`.
    pub(super) fn labelled(&mut self, name: &str) -> Result<Statement, Error> {
        if self.eat_dot("branchtargets") || self.eat_dot("calltargets") {
            let mut targets = vec![self.word()?.to_owned()];
            while self.eat(',') {
                targets.push(self.word()?.to_owned());
            }
            self.expect(';')?;
            return Ok(Statement::Targets(name.to_owned(), targets));
        }
        if self.eat_dot("callprototype") {
            let returns = if *self.peek() == Token::Symbol('(') { self.formals()? } else { Vec::new() };
            self.word()?;
            let parameters = if *self.peek() == Token::Symbol('(') { self.formals()? } else { Vec::new() };
            self.directives()?;
            self.expect(';')?;
            return Ok(Statement::Prototype(Prototype { name: name.to_owned(), returns, parameters }));
        }
        Ok(Statement::Label(name.to_owned()))
    }
}
