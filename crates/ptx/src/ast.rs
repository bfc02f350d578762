//! A module as written: names unresolved, instructions undecoded.

use crate::types::{Space, Type};

#[derive(Debug, Default)]
pub(crate) struct Ast {
    pub version: (u32, u32),
    pub target: String,
    pub variables: Vec<Variable>,
    pub functions: Vec<Function>,
    /// `.alias NAME, TARGET;`
    pub aliases: Vec<(String, String)>,
}

/// How a symbol takes part in linking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linkage {
    Private,
    Visible,
    Weak,
    Common,
    Extern,
}

#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub line: u32,
    pub name: String,
    /// `None` for a register (a formal parameter of a function may be one).
    pub space: Option<Space>,
    pub linkage: Linkage,
    pub ty: Type,
    pub align: u32,
    /// Size in bytes; zero for an array of unstated length.
    pub size: u64,
    pub unsized_array: bool,
    pub initial: Option<Vec<Initial>>,
}

/// One scalar of an initialiser, in the order of memory.
#[derive(Debug, Clone)]
pub(crate) enum Initial {
    Bits(u64),
    Symbol { name: String, addend: i64, generic: bool },
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Directives {
    pub max_threads: Option<[u32; 3]>,
    pub max_registers: Option<u32>,
    /// Of one multiprocessor.
    pub min_blocks: Option<u32>,
    pub required_threads: Option<[u32; 3]>,
    pub cluster: Option<[u32; 3]>,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub line: u32,
    pub name: String,
    pub kernel: bool,
    pub linkage: Linkage,
    pub returns: Vec<Variable>,
    pub parameters: Vec<Variable>,
    pub directives: Directives,
    pub body: Option<Vec<Statement>>,
}

#[derive(Debug)]
pub(crate) enum Statement {
    Label(String),
    Variable(Variable),
    Registers(Registers),
    Block(Vec<Statement>),
    Instruction(Instruction),
    /// `NAME: .branchtargets A, B;` (and `.calltargets`, which are not needed to run)
    Targets(String, Vec<String>),
    Prototype(Prototype),
}

#[derive(Debug)]
pub(crate) struct Prototype {
    pub name: String,
    pub returns: Vec<Variable>,
    pub parameters: Vec<Variable>,
}

/// `.reg .b32 %r<7>, %a;`
#[derive(Debug)]
pub(crate) struct Registers {
    pub ty: Type,
    /// 1, or the number of elements of a vector register.
    pub vector: u8,
    /// A name, and for `%r<7>` the count.
    pub names: Vec<(String, Option<u32>)>,
}

#[derive(Debug)]
pub(crate) struct Instruction {
    pub line: u32,
    /// Predicate register, and whether it is negated.
    pub guard: Option<(String, bool)>,
    /// The word before the first dot.
    pub name: String,
    pub modifiers: Vec<String>,
    pub operands: Vec<Operand>,
}

impl Instruction {
    /// Name and modifiers as written.
    pub fn full_name(&self) -> String {
        let mut text = self.name.clone();
        for modifier in &self.modifiers {
            text.push('.');
            text.push_str(modifier);
        }
        text
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    /// A register, label, variable or function.
    Name(String),
    /// `NAME+4`
    Offset(String, i64),
    /// `%tid.x`, `%v.y`
    Member(String, u8),
    /// `!%p`
    Not(String),
    Integer(u64),
    /// `0f3F800000`
    F32(u32),
    /// `0d3FF0000000000000` or a decimal
    F64(u64),
    /// `{%a, %b}`
    Vector(Vec<Operand>),
    /// `[BASE+4]`, where BASE is a name or an integer
    Address(Box<Operand>, i64),
    /// `[BASE, {%a, %b}]` of textures, surfaces and tensors: the address, and what stands behind it.
    Coordinates(Box<Operand>, Vec<Operand>),
    /// `(%a, %b)` of a call
    Group(Vec<Operand>),
    /// `%p|%q`
    Pair(Box<Operand>, Box<Operand>),
    /// `_`
    Sink,
}
