//! Calls: arguments go to fixed places at the start of the callee's frame, results come back from there.

use super::function::{FunctionLowering, Local, register_rows};
use super::layout;
use super::symbols::Definition;
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::ast::{Instruction, Operand, Variable};
use crate::program::{ArgumentPlace, Builtin, BuiltinCall, Call, Op, Transfer};
use crate::types::Type;

/// Functions that the device itself provides.
pub(super) fn builtin(name: &str) -> Option<Builtin> {
    Some(match name {
        "vprintf" => Builtin::Vprintf,
        "__assertfail" => Builtin::AssertFail,
        "malloc" => Builtin::Malloc,
        "free" => Builtin::Free,
        "cudaGraphSetConditional" => Builtin::SetConditional,
        _ => return None,
    })
}

struct Parts<'a> {
    returns: &'a [Operand],
    callee: &'a Operand,
    arguments: &'a [Operand],
    prototype: Option<&'a str>,
}

fn parts(operands: &[Operand]) -> Option<Parts<'_>> {
    let (returns, rest) = match operands {
        [Operand::Group(returns), rest @ ..] => (returns.as_slice(), rest),
        rest => (&[][..], rest),
    };
    let (callee, rest) = rest.split_first()?;
    let (arguments, rest) = match rest {
        [Operand::Group(arguments), rest @ ..] => (arguments.as_slice(), rest),
        rest => (&[][..], rest),
    };
    let prototype = match rest {
        [] => None,
        [Operand::Name(name)] => Some(name.as_str()),
        _ => return None,
    };
    Some(Parts { returns, callee, arguments, prototype })
}

impl<'a> FunctionLowering<'_, 'a> {
    pub fn call(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        modifiers.take("uni");
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        let Some(parts) = parts(&instruction.operands) else {
            return Err(self.error(instruction, "the operands are not those of a call"));
        };
        let Operand::Name(name) = parts.callee else {
            return Err(self.error(instruction, "what is called is not a function or register"));
        };
        let defined = match self.find(name) {
            Some(Local::Register(_)) => None,
            _ => Some(self.definition(name)),
        };
        let mut results = Vec::new();
        let mut sources = Vec::new();
        let (function, formals) = match defined {
            Some(Some(Definition::Function(index))) => {
                let (_, callee) = self.unit.symbols.functions[index];
                (Some(index as u32), Some((&callee.returns, &callee.parameters)))
            }
            Some(None) if builtin(name).is_some() => return self.builtin(instruction, name, &parts),
            Some(None) if self.unit.symbols.declarations.contains_key(name.as_str()) => {
                self.unit.unresolved.insert(name.clone());
                let message = format!("calls `{name}`, which no module defines");
                self.emit(Op::Illegal(message.into()), &[], &[]);
                return Ok(());
            }
            Some(_) => return Err(self.error(instruction, format!("`{name}` is not a function"))),
            None => {
                sources.push(self.source(instruction, parts.callee, Type::B64)?);
                let prototype = parts.prototype.and_then(|name| {
                    self.scopes.iter().rev().find_map(|scope| scope.prototypes.get(name).copied())
                });
                (None, prototype.map(|prototype| (&prototype.returns, &prototype.parameters)))
            }
        };
        let Some((returns, parameters)) = formals else {
            return Err(self.error(instruction, "an indirect call needs a `.callprototype`"));
        };
        // Linkers do not compare signatures: a result that a function of another text does not give is undefined.
        let other = function.is_some_and(|index| self.unit.symbols.functions[index as usize].0 != self.text);
        let results_fit = returns.len() == parts.returns.len() || other && returns.is_empty();
        if !results_fit || parameters.len() != parts.arguments.len() {
            return Err(self.error(
                instruction,
                format!(
                    "found {} arguments and {} results, expected {} and {}",
                    parts.arguments.len(),
                    parts.returns.len(),
                    parameters.len(),
                    returns.len()
                ),
            ));
        }
        let (return_places, end) = layout(returns, 0);
        let (parameter_places, _) = layout(parameters, end);
        let mut returned = Vec::new();
        for ((operand, formal), place) in parts.returns.iter().zip(returns).zip(return_places) {
            self.transfer(instruction, operand, formal, place.offset, &mut results, true, &mut returned)?;
        }
        let mut arguments = Vec::new();
        for ((operand, formal), place) in parts.arguments.iter().zip(parameters).zip(parameter_places) {
            self.transfer(instruction, operand, formal, place.offset, &mut sources, false, &mut arguments)?;
        }
        let first = results.len() as u8;
        for transfer in &mut arguments {
            if let ArgumentPlace::Operand(index) = &mut transfer.callers {
                *index += first;
            }
        }
        if results.len() + sources.len() > usize::from(u8::MAX) {
            return Err(self.error(instruction, "more than 255 operands in registers"));
        }
        let call = Call { function, arguments, returns: returned };
        self.emit(Op::Call(call.into()), &results, &sources);
        Ok(())
    }

    /// One argument or result: a frame variable as a whole, or registers.
    #[allow(clippy::too_many_arguments, reason = "the parts of one call")]
    fn transfer(
        &mut self,
        instruction: &Instruction,
        operand: &Operand,
        formal: &Variable,
        callees: u32,
        rows: &mut Vec<u32>,
        written: bool,
        transfers: &mut Vec<Transfer>,
    ) -> Result<(), Error> {
        if let Operand::Name(name) = operand
            && let Some(Local::Frame { offset, size, .. }) = self.find(name)
        {
            let size = size.min(formal.size as u32);
            transfers.push(Transfer { callers: ArgumentPlace::Frame(offset), callees, size });
            return Ok(());
        }
        let found = match (written, operand) {
            (true, Operand::Name(name)) => match self.find(name) {
                Some(Local::Register(register)) => register_rows(register).collect(),
                _ => vec![self.result(instruction, operand)?],
            },
            (true, _) => self.results(instruction, operand)?,
            (false, _) => self.sources(instruction, operand, formal.ty)?,
        };
        let width = (formal.size as u32 / found.len().max(1) as u32).clamp(1, 8);
        for (index, row) in found.into_iter().enumerate() {
            transfers.push(Transfer {
                callers: ArgumentPlace::Operand(rows.len() as u8),
                callees: callees + index as u32 * width,
                size: width,
            });
            rows.push(row);
        }
        Ok(())
    }

    fn builtin(&mut self, instruction: &Instruction, name: &str, parts: &Parts<'_>) -> Result<(), Error> {
        let Some(builtin) = builtin(name) else {
            return Err(self.unknown(instruction));
        };
        let (mut results, mut sources, mut arguments) = (Vec::new(), Vec::new(), Vec::new());
        let mut result = None;
        for operand in parts.returns {
            result = Some(match self.frame_variable(operand) {
                Some(offset) => ArgumentPlace::Frame(offset),
                None => {
                    results.push(self.result(instruction, operand)?);
                    ArgumentPlace::Operand(0)
                }
            });
        }
        for operand in parts.arguments {
            arguments.push(match self.frame_variable(operand) {
                Some(offset) => ArgumentPlace::Frame(offset),
                None => {
                    sources.push(self.source(instruction, operand, Type::B64)?);
                    ArgumentPlace::Operand((results.len() + sources.len() - 1) as u8)
                }
            });
        }
        let expected = match builtin {
            Builtin::Vprintf | Builtin::SetConditional => 2,
            Builtin::AssertFail => 5,
            Builtin::Malloc | Builtin::Free => 1,
        };
        if arguments.len() != expected {
            let message = format!("found {} arguments of `{name}`, expected {expected}", arguments.len());
            return Err(self.error(instruction, message));
        }
        let call = BuiltinCall { builtin, arguments, result };
        self.emit(Op::Builtin(call.into()), &results, &sources);
        Ok(())
    }

    fn frame_variable(&mut self, operand: &Operand) -> Option<u32> {
        match operand {
            Operand::Name(name) => match self.find(name)? {
                Local::Frame { offset, .. } => Some(offset),
                _ => None,
            },
            _ => None,
        }
    }
}
