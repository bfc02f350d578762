//! One function: scopes, declarations, labels, and the order of its code.

use std::collections::HashMap;

use super::symbols::Definition;
use super::{Shared, Unit, allocate, layout};
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::ast::{self, Prototype, Registers, Statement, Variable};
use crate::program::{Access, CONSTANT, Constant, Function, Instruction, Op, UNGUARDED};
use crate::types::{Space, Type};

/// No function has more registers; it bounds what a hostile text can ask for.
const MAX_REGISTERS: usize = 1 << 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct Register {
    pub ty: Type,
    /// The first of its rows: one, two for 128 bits, one for each element of a vector.
    pub first: u32,
    pub rows: u8,
}

#[derive(Debug, Clone)]
pub(super) enum Local {
    Register(Register),
    /// A variable or parameter in the frame.
    Frame {
        offset: u32,
        size: u32,
        space: Space,
    },
    /// A kernel's parameter.
    Parameter {
        offset: u32,
    },
    Shared {
        offset: u32,
    },
}

#[derive(Default)]
pub(super) struct Scope<'a> {
    pub labels: HashMap<&'a str, u32>,
    pub names: HashMap<String, Local>,
    /// `%r<100>`
    families: Vec<(&'a str, u32, Type, u8)>,
    pub targets: HashMap<&'a str, &'a [String]>,
    pub prototypes: HashMap<&'a str, &'a Prototype>,
}

pub(super) struct FunctionLowering<'u, 'a> {
    pub unit: &'u mut Unit<'a>,
    pub text: usize,
    pub function: &'a ast::Function,
    pub scopes: Vec<Scope<'a>>,
    /// Where each label is, once it is known.
    labels: Vec<Option<u32>>,
    /// Type of each row.
    pub rows: Vec<Type>,
    pub frame: u32,
    shared: Shared,
    carry: Option<u32>,
    pub guard: u32,
    pub negated: bool,
    pub line: u32,
    start: u32,
}

impl<'u, 'a> FunctionLowering<'u, 'a> {
    pub fn lower(
        unit: &'u mut Unit<'a>,
        text: usize,
        function: &'a ast::Function,
    ) -> Result<Function, Error> {
        let start = unit.code.len() as u32;
        let first_operand = unit.operands.len();
        let shared = unit.common_shared.clone();
        let mut lowering = FunctionLowering {
            unit,
            text,
            function,
            scopes: vec![Scope::default()],
            labels: Vec::new(),
            rows: Vec::new(),
            frame: 0,
            shared,
            carry: None,
            guard: UNGUARDED,
            negated: false,
            line: function.line,
            start,
        };
        lowering.formals();
        if let Some(body) = &function.body {
            lowering.block(body)?;
        }
        lowering.clear_guard();
        lowering.leave();
        lowering.resolve_labels()?;
        let FunctionLowering { unit, rows, frame, shared, .. } = lowering;
        let allocation = allocate::allocate(&unit.code, &mut unit.operands, start, first_operand, &rows);
        for instruction in &mut unit.code[start as usize..] {
            if instruction.guard != UNGUARDED {
                instruction.guard = allocation.row(instruction.guard);
            }
        }
        let Some(index) = unit.symbols.functions.iter().position(|(_, other)| std::ptr::eq(*other, function))
        else {
            return Err(Error::link(format!("`{}` has no definition", function.name)));
        };
        unit.symbols.registers[index] = allocation.words;
        if function.kernel {
            unit.symbols.static_shared[index] = shared.size;
        } else {
            unit.common_shared = shared;
        }
        Ok(Function { start, registers: allocation.rows, frame: frame.next_multiple_of(16) })
    }

    /// Kernel parameters stay where the launch put them; those of functions begin the frame.
    fn formals(&mut self) {
        let function = self.function;
        if function.kernel {
            let (parameters, _) = layout(&function.parameters, 0);
            for (variable, parameter) in function.parameters.iter().zip(parameters) {
                let local = Local::Parameter { offset: parameter.offset };
                self.scopes[0].names.insert(variable.name.clone(), local);
            }
            return;
        }
        let (returns, end) = layout(&function.returns, 0);
        let (parameters, end) = layout(&function.parameters, end);
        self.frame = end;
        for (variable, place) in function.returns.iter().zip(&returns) {
            self.formal(variable, place.offset, false);
        }
        for (variable, place) in function.parameters.iter().zip(&parameters) {
            self.formal(variable, place.offset, true);
        }
    }

    /// A formal in a register is loaded from its place in the frame.
    fn formal(&mut self, variable: &Variable, offset: u32, load: bool) {
        if variable.space.is_some() {
            let local = Local::Frame { offset, size: variable.size as u32, space: Space::Param };
            self.scopes[0].names.insert(variable.name.clone(), local);
            return;
        }
        let register = self.new_register(variable.ty, 1);
        self.scopes[0].names.insert(variable.name.clone(), Local::Register(register));
        if load {
            let op = Op::Load(self.frame_access(offset, register.ty));
            let rows: Vec<u32> = register_rows(register).collect();
            let zero = self.unit.constant(Constant::Bits(0));
            self.emit(op, &rows, &[zero]);
        }
    }

    pub fn frame_access(&self, offset: u32, ty: Type) -> Access {
        let (width, count) = if ty == Type::B128 { (8, 2) } else { (ty.bytes() as u8, 1) };
        Access {
            space: Space::Local,
            width,
            count,
            sign_extend: 0,
            frame: true,
            volatile: false,
            offset: i64::from(offset),
        }
    }

    /// Return, or exit from a kernel; results in registers go to the frame first.
    pub fn leave(&mut self) {
        if self.function.kernel {
            self.emit(Op::Exit, &[], &[]);
            return;
        }
        let (places, _) = layout(&self.function.returns, 0);
        for (variable, place) in self.function.returns.iter().zip(places) {
            if variable.space.is_none()
                && let Some(Local::Register(register)) = self.scopes[0].names.get(&variable.name).cloned()
            {
                let op = Op::Store(self.frame_access(place.offset, register.ty));
                let zero = self.unit.constant(Constant::Bits(0));
                let sources: Vec<u32> = std::iter::once(zero).chain(register_rows(register)).collect();
                self.emit(op, &[], &sources);
            }
        }
        self.emit(Op::Return, &[], &[]);
    }

    fn block(&mut self, statements: &'a [Statement]) -> Result<(), Error> {
        // A label may be used before it stands; its scope is the block.
        for statement in statements {
            let scope = self.scopes.last_mut();
            match (statement, scope) {
                (Statement::Label(name), Some(scope)) => {
                    scope.labels.insert(name, self.labels.len() as u32);
                    self.labels.push(None);
                }
                (Statement::Targets(name, targets), Some(scope)) => {
                    scope.targets.insert(name, targets);
                }
                (Statement::Prototype(prototype), Some(scope)) => {
                    scope.prototypes.insert(&prototype.name, prototype);
                }
                _ => {}
            }
        }
        for statement in statements {
            self.statement(statement)?;
        }
        Ok(())
    }

    fn statement(&mut self, statement: &'a Statement) -> Result<(), Error> {
        match statement {
            Statement::Label(name) => {
                let here = self.unit.code.len() as u32;
                let label = self.scopes.last().and_then(|scope| scope.labels.get(name.as_str()).copied());
                if let Some(label) = label {
                    self.labels[label as usize] = Some(here);
                }
            }
            Statement::Block(inner) => {
                self.scopes.push(Scope::default());
                let result = self.block(inner);
                self.scopes.pop();
                result?;
            }
            Statement::Registers(registers) => self.registers(registers)?,
            Statement::Variable(variable) => self.variable(variable)?,
            Statement::Targets(..) | Statement::Prototype(_) => {}
            Statement::Instruction(instruction) => self.guarded(instruction)?,
        }
        Ok(())
    }

    fn registers(&mut self, registers: &'a Registers) -> Result<(), Error> {
        for (name, count) in &registers.names {
            match count {
                Some(count) => {
                    if let Some(scope) = self.scopes.last_mut() {
                        scope.families.push((name, *count, registers.ty, registers.vector));
                    }
                }
                None => {
                    let register = self.new_register(registers.ty, registers.vector);
                    self.name(name.clone(), Local::Register(register));
                }
            }
        }
        if self.rows.len() > MAX_REGISTERS {
            return Err(Error::syntax(
                self.line,
                format!("a function has more than {MAX_REGISTERS} registers"),
            ));
        }
        Ok(())
    }

    fn name(&mut self, name: String, local: Local) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.names.insert(name, local);
        }
    }

    fn variable(&mut self, variable: &'a Variable) -> Result<(), Error> {
        let local = match variable.space {
            Some(Space::Shared) => {
                if variable.unsized_array {
                    return Err(Error::syntax(
                        variable.line,
                        "dynamic shared memory must be declared at module scope",
                    ));
                }
                Local::Shared { offset: self.shared.place(variable.size, variable.align) }
            }
            Some(space @ (Space::Local | Space::Param)) => {
                let offset = self.frame.next_multiple_of(variable.align.max(1));
                let size = u32::try_from(variable.size).unwrap_or(u32::MAX);
                self.frame = offset.saturating_add(size);
                if self.frame > 1 << 24 {
                    return Err(Error::syntax(
                        variable.line,
                        "a function has more than 16 MiB of local variables",
                    ));
                }
                Local::Frame { offset, size, space }
            }
            _ => {
                let message = format!("`{}` must be declared at module scope", variable.name);
                return Err(Error::syntax(variable.line, message));
            }
        };
        self.name(variable.name.clone(), local);
        Ok(())
    }

    pub fn new_register(&mut self, ty: Type, vector: u8) -> Register {
        let first = self.rows.len() as u32;
        let (rows, row_type) = if ty == Type::B128 { (2, Type::B64) } else { (vector, ty) };
        self.rows.extend(std::iter::repeat_n(row_type, usize::from(rows)));
        Register { ty, first, rows }
    }

    pub fn temporary(&mut self, ty: Type) -> u32 {
        self.new_register(ty, 1).first
    }

    /// The register that `.cc` writes.
    pub fn carry(&mut self) -> u32 {
        if let Some(row) = self.carry {
            return row;
        }
        let row = self.temporary(Type::B32);
        self.carry = Some(row);
        row
    }

    /// What a name means in the innermost scope that knows it.
    pub fn find(&mut self, name: &str) -> Option<Local> {
        for depth in (0..self.scopes.len()).rev() {
            if let Some(local) = self.scopes[depth].names.get(name) {
                return Some(local.clone());
            }
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let digits = &name[stem.len()..];
            // A family's name may itself end in digits.
            let family = self.scopes[depth].families.iter().copied().find(|(prefix, count, _, _)| {
                let number = name
                    .strip_prefix(prefix)
                    .filter(|number| !number.is_empty() && number.len() <= digits.len());
                number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| number < *count)
            });
            if let Some((_, _, ty, vector)) = family {
                let register = self.new_register(ty, vector);
                self.scopes[depth].names.insert(name.to_owned(), Local::Register(register));
                return Some(Local::Register(register));
            }
        }
        None
    }

    /// Where a module's shared variable lies in this function's kernels; `None` for dynamic shared memory.
    pub fn shared_variable(&mut self, text: usize, index: usize, variable: &Variable) -> Option<u32> {
        if variable.unsized_array || variable.linkage == ast::Linkage::Extern {
            return None;
        }
        let key = (text, format!("{index}"));
        if let Some(offset) = self.shared.offsets.get(&key) {
            return Some(*offset);
        }
        let offset = self.shared.place(variable.size, variable.align);
        self.shared.offsets.insert(key, offset);
        Some(offset)
    }

    pub fn definition(&self, name: &str) -> Option<Definition> {
        self.unit.symbols.find(self.text, name)
    }

    pub fn clear_guard(&mut self) {
        self.guard = UNGUARDED;
        self.negated = false;
    }

    pub fn emit(&mut self, op: Op, results: &[u32], sources: &[u32]) {
        let operands = self.unit.operands.len() as u32;
        self.unit.operands.extend_from_slice(results);
        self.unit.operands.extend_from_slice(sources);
        self.unit.code.push(Instruction {
            op,
            operands,
            results: results.len() as u8,
            sources: sources.len() as u8,
            negated: self.negated,
            guard: self.guard,
            line: self.line,
        });
    }

    fn guarded(&mut self, instruction: &'a ast::Instruction) -> Result<(), Error> {
        self.line = instruction.line;
        self.clear_guard();
        if let Some((name, negated)) = &instruction.guard {
            let guard = match self.find(name) {
                Some(Local::Register(register)) if register.ty == Type::Pred => register.first,
                _ => {
                    return Err(
                        self.error(instruction, format!("the guard `{name}` is not a predicate register"))
                    );
                }
            };
            self.guard = guard;
            self.negated = *negated;
        }
        let mut modifiers = Modifiers::new(&instruction.modifiers);
        self.instruction(instruction, &mut modifiers)?;
        if self.rows.len() > MAX_REGISTERS {
            return Err(
                self.error(instruction, format!("the function has more than {MAX_REGISTERS} registers"))
            );
        }
        Ok(())
    }

    pub fn error(&self, instruction: &ast::Instruction, message: impl Into<String>) -> Error {
        Error::Operand {
            line: instruction.line,
            instruction: instruction.full_name(),
            message: message.into(),
        }
    }

    pub fn unknown(&self, instruction: &ast::Instruction) -> Error {
        Error::UnknownInstruction { line: instruction.line, instruction: instruction.full_name() }
    }

    /// Branches hold label numbers until all code of the function stands.
    fn resolve_labels(&mut self) -> Result<(), Error> {
        let labels = &self.labels;
        let find = |label: u32, line: u32| {
            labels[label as usize]
                .ok_or_else(|| Error::syntax(line, "a branch goes to a label that is not there"))
        };
        for instruction in &mut self.unit.code[self.start as usize..] {
            match &mut instruction.op {
                Op::Branch(target) => *target = find(*target, instruction.line)?,
                Op::BranchTable(targets) => {
                    let found: Result<Vec<u32>, Error> =
                        targets.iter().map(|label| find(*label, instruction.line)).collect();
                    *targets = found?.into();
                }
                _ => {}
            }
        }
        Ok(())
    }
}

pub(super) fn register_rows(register: Register) -> impl Iterator<Item = u32> {
    (0..u32::from(register.rows)).map(move |i| register.first + i)
}

/// Whether an operand is a register's row.
pub(super) fn is_row(operand: u32) -> bool {
    operand & CONSTANT == 0
}
