//! Instructions that are pure functions of their sources, each run on 32 lanes at once.
//!
//! [`select`] turns a name and its modifiers into the function to call. A function computes all lanes, active
//! or not; the machine keeps the results of the active ones. None of them may therefore panic on any input.

#[macro_use]
mod macros;

mod approximate;
mod bits;
mod carry;
mod compare;
mod convert;
mod convert_packed;
mod float;
mod half_float;
mod integer;
mod logic;
pub(crate) mod minifloat;
pub(crate) mod modifiers;
mod multiply;
pub(crate) mod packed;
mod rounding;
mod value;
pub(crate) mod video;

use crate::types::Type;
use modifiers::Modifiers;
pub(crate) use rounding::Rounding;
pub(crate) use value::{LANES, Lanes, Value};

/// Results from up to four sources.
pub(crate) type Alu = fn(&mut Lanes, [&Lanes; 4]);
/// The same with a second result.
pub(crate) type Alu2 = fn(&mut [Lanes; 2], [&Lanes; 4]);

#[derive(Clone, Copy)]
pub(crate) enum Function {
    One(Alu),
    /// Results: value and carry. The carry register is the last source where `reads_carry`.
    Carry {
        run: Alu2,
        reads_carry: bool,
        writes_carry: bool,
    },
}

/// An instruction of this family, decoded.
#[derive(Clone, Copy)]
pub(crate) struct Selected {
    pub function: Function,
    pub sources: usize,
    /// The type that a floating-point literal among the sources takes.
    pub literal: Type,
    /// Where the result is signed and narrower than the register: its width, for sign extension.
    pub sign_extend: Option<u32>,
}

impl Selected {
    fn new(run: Alu, sources: usize, literal: Type) -> Self {
        Self { function: Function::One(run), sources, literal, sign_extend: None }
    }
}

/// The function of an instruction; `None` if there is no such instruction here. The caller checks that all
/// modifiers were taken.
pub(crate) fn select(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    match name {
        "add" | "sub" | "mul" | "mad" | "fma" | "min" | "max" | "abs" | "neg" | "div" => {
            match modifiers.peek_type()? {
                Type::F32 | Type::F64 | Type::F32x2 => float::select(name, modifiers),
                Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 => half_float::select(name, modifiers),
                _ if modifiers.has("cc") => carry::select(name, modifiers),
                _ if matches!(name, "mul" | "mad") => multiply::select(name, modifiers),
                _ => integer::select(name, modifiers),
            }
        }
        "addc" | "subc" | "madc" => carry::select(name, modifiers),
        "mul24" | "mad24" | "dp4a" | "dp2a" => multiply::select(name, modifiers),
        "rem" | "sad" => integer::select(name, modifiers),
        "popc" | "clz" | "bfind" | "fns" | "brev" | "bfe" | "bfi" | "szext" | "bmsk" => {
            bits::select(name, modifiers)
        }
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "lop3" | "prmt" => {
            logic::select(name, modifiers)
        }
        "ex2" | "tanh" if modifiers.peek_type()? != Type::F32 => half_float::select(name, modifiers),
        "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => {
            approximate::select(name, modifiers)
        }
        "copysign" | "testp" => float::select(name, modifiers),
        "selp" | "slct" => compare::select(name, modifiers),
        "cvt" => convert::select(modifiers).or_else(|| convert_packed::select(modifiers)),
        _ => None,
    }
}

pub(crate) use compare::{comparison, truth};
