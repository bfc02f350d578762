//! Tokens to [`Ast`]. Never panics, whatever the text; nesting is bounded.

mod declaration;
mod initializer;
mod instruction;

pub(crate) use initializer::float_bits;

use std::collections::HashMap;

use crate::Error;
use crate::ast::{Ast, Directives, Function, Linkage, Statement};
use crate::lexer::{Lexer, Spanned, Token};

/// Depth of `{}` in a function, of braces in an initialiser and of operands in one another.
const MAX_NESTING: u32 = 64;

pub(crate) fn parse(source: &str) -> Result<Ast, Error> {
    let tokens = Lexer::tokens(source)?;
    Parser { tokens, at: 0, nesting: 0, elements: HashMap::new() }.module()
}

pub(super) struct Parser<'a> {
    tokens: Vec<Spanned<'a>>,
    at: usize,
    nesting: u32,
    /// Bytes of an element of each variable that was declared, by its name.
    elements: HashMap<&'a str, u64>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &Token<'a> {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> &Token<'a> {
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].token
    }

    fn line(&self) -> u32 {
        self.tokens[self.at.min(self.tokens.len() - 1)].line
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn eat(&mut self, symbol: char) -> bool {
        let found = *self.peek() == Token::Symbol(symbol);
        self.at += usize::from(found);
        found
    }

    fn eat_dot(&mut self, name: &str) -> bool {
        let found = matches!(self.peek(), Token::Dot(found) if *found == name);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: char) -> Result<(), Error> {
        if self.eat(symbol) { Ok(()) } else { Err(self.unexpected(&format!("`{symbol}`"))) }
    }

    fn word(&mut self) -> Result<&'a str, Error> {
        match *self.peek() {
            Token::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    fn integer(&mut self) -> Result<u64, Error> {
        match *self.peek() {
            Token::Integer(value) => {
                self.at += 1;
                Ok(value)
            }
            _ => Err(self.unexpected("an integer")),
        }
    }

    fn integer32(&mut self) -> Result<u32, Error> {
        let line = self.line();
        let value = self.integer()?;
        u32::try_from(value).map_err(|_| Error::syntax(line, format!("{value} is too large here")))
    }

    fn signed_integer(&mut self) -> Result<i64, Error> {
        let negative = self.eat('-');
        let value = self.integer()? as i64;
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    fn unexpected(&self, expected: &str) -> Error {
        let found = match self.peek() {
            Token::Word(word) => format!("`{word}`"),
            Token::Dot(name) => format!("`.{name}`"),
            Token::Integer(value) => format!("`{value}`"),
            Token::F32(_) | Token::F64(_) => "a floating-point number".into(),
            Token::Text(_) => "a string".into(),
            Token::Symbol(symbol) => format!("`{symbol}`"),
            Token::End => "the end of the text".into(),
        };
        Error::syntax(self.line(), format!("found {found}, expected {expected}"))
    }

    /// Runs `inner` one level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.nesting >= MAX_NESTING {
            return Err(Error::syntax(self.line(), format!("nested deeper than {MAX_NESTING} levels")));
        }
        self.nesting += 1;
        let result = inner(self);
        self.nesting -= 1;
        result
    }

    fn module(mut self) -> Result<Ast, Error> {
        let mut ast = Ast::default();
        loop {
            let line = self.line();
            match self.next() {
                Token::End => break,
                Token::Symbol(';') => {}
                Token::Dot("version") => ast.version = self.version()?,
                Token::Dot("target") => {
                    ast.target = self.word()?.to_owned();
                    while self.eat(',') {
                        self.word()?;
                    }
                }
                Token::Dot("address_size") => {
                    if self.integer()? != 64 {
                        return Err(Error::syntax(line, "only `.address_size 64` is supported"));
                    }
                }
                Token::Dot("file" | "loc") => self.skip_line(line),
                Token::Dot("section") => self.skip_section()?,
                Token::Dot("pragma") => self.skip_statement(),
                Token::Dot("alias") => {
                    let alias = self.word()?.to_owned();
                    self.expect(',')?;
                    let target = self.word()?.to_owned();
                    self.expect(';')?;
                    ast.aliases.push((alias, target));
                }
                Token::Dot("debug_info" | "metadata") => self.skip_statement(),
                Token::Dot(_) => {
                    self.at -= 1;
                    self.top_level_declaration(&mut ast)?;
                }
                // Old debug sections: `@@DWARF dwarf-string`
                Token::Symbol('@') => self.skip_line(line),
                _ => {
                    self.at -= 1;
                    return Err(self.unexpected("a directive such as `.entry` or `.global`"));
                }
            }
        }
        if ast.version == (0, 0) {
            return Err(Error::syntax(1, "the module has no `.version`; is this PTX?"));
        }
        Ok(ast)
    }

    fn version(&mut self) -> Result<(u32, u32), Error> {
        match self.next() {
            Token::F64(bits) => {
                let value = f64::from_bits(bits);
                let tenths = (value * 10.0).round() as u32;
                Ok((tenths / 10, tenths % 10))
            }
            _ => {
                self.at -= 1;
                Err(self.unexpected("a version such as `8.0`"))
            }
        }
    }

    fn linkage(&mut self) -> Linkage {
        for (name, linkage) in [
            ("visible", Linkage::Visible),
            ("extern", Linkage::Extern),
            ("weak", Linkage::Weak),
            ("common", Linkage::Common),
        ] {
            if self.eat_dot(name) {
                return linkage;
            }
        }
        Linkage::Private
    }

    fn top_level_declaration(&mut self, ast: &mut Ast) -> Result<(), Error> {
        let linkage = self.linkage();
        if self.eat_dot("entry") {
            ast.functions.push(self.function(linkage, true)?);
        } else if self.eat_dot("func") {
            ast.functions.push(self.function(linkage, false)?);
        } else {
            for variable in self.variables(linkage)? {
                ast.variables.push(variable);
            }
        }
        Ok(())
    }

    fn function(&mut self, linkage: Linkage, kernel: bool) -> Result<Function, Error> {
        let line = self.line();
        while self.eat_dot("attribute") {
            self.skip_group()?;
        }
        let returns =
            if !kernel && *self.peek() == Token::Symbol('(') { self.formals()? } else { Vec::new() };
        let name = self.word()?.to_owned();
        let parameters = if *self.peek() == Token::Symbol('(') { self.formals()? } else { Vec::new() };
        let directives = self.directives()?;
        let body = if self.eat('{') {
            Some(self.nested(Self::statements)?)
        } else {
            self.expect(';')?;
            None
        };
        Ok(Function { line, name, kernel, linkage, returns, parameters, directives, body })
    }

    fn directives(&mut self) -> Result<Directives, Error> {
        let mut directives = Directives::default();
        while let Token::Dot(name) = *self.peek() {
            self.at += 1;
            match name {
                "maxntid" => directives.max_threads = Some(self.dimensions()?),
                "maxnreg" => directives.max_registers = Some(self.integer32()?.max(1)),
                "reqntid" => directives.required_threads = Some(self.dimensions()?),
                "reqnctapercluster" => directives.cluster = Some(self.dimensions()?),
                "minnctapersm" => directives.min_blocks = Some(self.integer32()?),
                "maxnctapersm" | "maxclusterrank" | "abi_preserve" | "abi_preserve_control" => {
                    self.integer()?;
                }
                "explicitcluster" | "noreturn" | "blocksareclusters" | "unique" => {}
                "pragma" => self.skip_statement(),
                _ => {
                    self.at -= 1;
                    return Err(self.unexpected("a performance directive, `{` or `;`"));
                }
            }
        }
        Ok(directives)
    }

    fn dimensions(&mut self) -> Result<[u32; 3], Error> {
        let mut dimensions = [self.integer32()?, 1, 1];
        for dimension in &mut dimensions[1..] {
            if self.eat(',') {
                *dimension = self.integer32()?;
            }
        }
        Ok(dimensions)
    }

    /// Statements up to and including the closing brace.
    fn statements(&mut self) -> Result<Vec<Statement>, Error> {
        let mut statements = Vec::new();
        while !self.eat('}') {
            let line = self.line();
            match *self.peek() {
                Token::End => return Err(self.unexpected("`}`")),
                Token::Symbol(';') => self.at += 1,
                Token::Symbol('{') => {
                    self.at += 1;
                    statements.push(Statement::Block(self.nested(Self::statements)?));
                }
                Token::Dot("loc" | "file") => {
                    self.at += 1;
                    self.skip_line(line);
                }
                Token::Dot("pragma") => self.skip_statement(),
                Token::Dot("section") => {
                    self.at += 1;
                    self.skip_section()?;
                }
                Token::Dot("reg") => {
                    self.at += 1;
                    statements.push(Statement::Registers(self.registers()?));
                }
                Token::Dot(_) => {
                    let linkage = self.linkage();
                    let variables = self.variables(linkage)?;
                    statements.extend(variables.into_iter().map(Statement::Variable));
                }
                Token::Word(name) if *self.peek_at(1) == Token::Symbol(':') => {
                    self.at += 2;
                    statements.push(self.labelled(name)?);
                }
                _ => statements.push(Statement::Instruction(self.instruction()?)),
            }
        }
        Ok(statements)
    }

    fn skip_line(&mut self, line: u32) {
        while self.line() == line && *self.peek() != Token::End {
            self.at += 1;
        }
    }

    fn skip_statement(&mut self) {
        while !matches!(self.next(), Token::Symbol(';') | Token::End) {}
    }

    fn skip_section(&mut self) -> Result<(), Error> {
        while *self.peek() != Token::Symbol('{') {
            if *self.peek() == Token::End {
                return Err(self.unexpected("`{`"));
            }
            self.at += 1;
        }
        let mut depth = 0;
        loop {
            match self.next() {
                Token::Symbol('{') => depth += 1,
                Token::Symbol('}') => depth -= 1,
                Token::End => return Err(self.unexpected("`}`")),
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// `( ... )`, ignored.
    fn skip_group(&mut self) -> Result<(), Error> {
        self.expect('(')?;
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Token::Symbol('(') => depth += 1,
                Token::Symbol(')') => depth -= 1,
                Token::End => return Err(self.unexpected("`)`")),
                _ => {}
            }
        }
        Ok(())
    }
}
