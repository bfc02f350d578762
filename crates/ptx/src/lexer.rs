//! Text to tokens, each with its line.

use crate::Error;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token<'a> {
    /// An identifier; may begin with `%`, `$` or `_`.
    Word(&'a str),
    /// `.name`, without the dot; `::` joins its parts.
    Dot(&'a str),
    Integer(u64),
    F32(u32),
    F64(u64),
    Text(&'a str),
    Symbol(char),
    End,
}

#[derive(Debug, Clone)]
pub(crate) struct Spanned<'a> {
    pub token: Token<'a>,
    pub line: u32,
}

fn is_word_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%')
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$')
}

pub(crate) struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
}

impl<'a> Lexer<'a> {
    pub fn tokens(source: &'a str) -> Result<Vec<Spanned<'a>>, Error> {
        // The driver takes PTX as a C string.
        let source = source.split('\0').next().unwrap_or_default();
        let mut lexer = Lexer { source, at: 0, line: 1 };
        let mut tokens = Vec::with_capacity(source.len() / 4);
        loop {
            lexer.skip_blank()?;
            let line = lexer.line;
            let token = lexer.token()?;
            let end = token == Token::End;
            tokens.push(Spanned { token, line });
            if end {
                return Ok(tokens);
            }
        }
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.source.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn take_while(&mut self, keep: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.at < self.source.len() && keep(self.peek(0)) {
            self.at += 1;
        }
        &self.source[start..self.at]
    }

    fn skip_blank(&mut self) -> Result<(), Error> {
        while self.at < self.source.len() {
            match (self.peek(0), self.peek(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                (b' ' | b'\t' | b'\r', _) => self.at += 1,
                (b'/', b'/') => {
                    self.take_while(|c| c != b'\n');
                }
                (b'/', b'*') => {
                    let rest = &self.source[self.at + 2..];
                    let Some(length) = rest.find("*/") else {
                        return Err(Error::syntax(self.line, "a comment has no end"));
                    };
                    self.line += rest[..length].matches('\n').count() as u32;
                    self.at += length + 4;
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn token(&mut self) -> Result<Token<'a>, Error> {
        if self.at >= self.source.len() {
            return Ok(Token::End);
        }
        let c = self.peek(0);
        if is_word_start(c) {
            let start = self.at;
            self.at += 1;
            self.take_while(is_word);
            return Ok(Token::Word(&self.source[start..self.at]));
        }
        if c.is_ascii_digit() {
            return self.number();
        }
        if c == b'.' && (is_word(self.peek(1)) || self.peek(1) == b'%') {
            self.at += 1;
            let start = self.at;
            self.take_while(is_word);
            while self.peek(0) == b':' && self.peek(1) == b':' && is_word(self.peek(2)) {
                self.at += 2;
                self.take_while(is_word);
            }
            return Ok(Token::Dot(&self.source[start..self.at]));
        }
        if c == b'"' {
            self.at += 1;
            let text = self.take_while(|c| c != b'"' && c != b'\n');
            if self.peek(0) != b'"' {
                return Err(Error::syntax(self.line, "a string has no end"));
            }
            self.at += 1;
            return Ok(Token::Text(text));
        }
        if c.is_ascii_graphic() {
            self.at += 1;
            return Ok(Token::Symbol(c as char));
        }
        let found = self.source[self.at..].chars().next().unwrap_or('\u{fffd}');
        Err(Error::syntax(self.line, format!("unexpected character {found:?}")))
    }

    fn number(&mut self) -> Result<Token<'a>, Error> {
        let start = self.at;
        let kind = self.peek(1) | 0x20;
        if self.peek(0) == b'0' && (kind == b'f' || kind == b'd') {
            self.at += 2;
            let digits = self.take_while(|c| c.is_ascii_hexdigit());
            let expected = if kind == b'f' { 8 } else { 16 };
            if digits.len() == expected {
                let bits = u64::from_str_radix(digits, 16).unwrap_or_default();
                return Ok(if kind == b'f' { Token::F32(bits as u32) } else { Token::F64(bits) });
            }
            let text = &self.source[start..self.at];
            return Err(Error::syntax(self.line, format!("`{text}` is not {expected} hexadecimal digits")));
        }
        let (radix, skip) = match (self.peek(0), kind) {
            (b'0', b'x') => (16, 2),
            (b'0', b'b') => (2, 2),
            (b'0', _) if self.peek(1).is_ascii_digit() => (8, 1),
            _ => (10, 0),
        };
        self.at += skip;
        let digits = self.take_while(|c| c.is_ascii_hexdigit() && (radix == 16 || c.is_ascii_digit()));
        if radix == 10 || radix == 8 {
            let fraction = self.peek(0) == b'.' && !is_word_start(self.peek(1));
            let exponent = matches!(self.peek(0), b'e' | b'E');
            if fraction || exponent {
                return self.decimal_float(start);
            }
        }
        let value = u64::from_str_radix(digits, radix).map_err(|_| {
            Error::syntax(self.line, format!("`{}` is not an integer", &self.source[start..self.at]))
        })?;
        if matches!(self.peek(0), b'U' | b'u') {
            self.at += 1;
        }
        Ok(Token::Integer(value))
    }

    fn decimal_float(&mut self, start: usize) -> Result<Token<'a>, Error> {
        if self.peek(0) == b'.' {
            self.at += 1;
            self.take_while(|c| c.is_ascii_digit());
        }
        if matches!(self.peek(0), b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek(0), b'+' | b'-') {
                self.at += 1;
            }
            self.take_while(|c| c.is_ascii_digit());
        }
        let text = &self.source[start..self.at];
        let value: f64 =
            text.parse().map_err(|_| Error::syntax(self.line, format!("`{text}` is not a number")))?;
        Ok(Token::F64(value.to_bits()))
    }
}
