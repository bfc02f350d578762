//! Comparisons and selections.

use super::float::pre;
use super::modifiers::Modifiers;
use super::value::{BFloat16, Half};
use super::{Alu, Selected};
use crate::types::Type;

/// The comparison alone, giving 0 or 1, of scalar values. Takes the operator, `.ftz` and the source type.
pub(crate) fn comparison(modifiers: &mut Modifiers) -> Option<(Alu, Type)> {
    let operator = modifiers.take_with(|word| OPERATORS.iter().copied().find(|known| *known == word))?;
    let ftz = modifiers.take("ftz");
    let ty = modifiers.take_type()?;
    Some((operation(operator, ftz, ty)?, ty))
}

const OPERATORS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
    "num", "nan",
];

#[allow(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::nonminimal_bool,
    clippy::double_comparisons,
    reason = "what they propose differs where a NaN takes part"
)]
fn operation(operator: &str, ftz: bool, ty: Type) -> Option<Alu> {
    let scalar = match ty {
        Type::F16x2 => Type::F16,
        Type::Bf16x2 => Type::Bf16,
        _ => ty,
    };
    if !scalar.is_float() {
        return if ftz { None } else { integer(operator, scalar) };
    }
    macro_rules! compare {
        (|$a:ident, $b:ident| $e:expr) => {
            match (scalar, ftz) {
                (Type::F32, true) => alu!(|a: f32, b: f32| {
                    let ($a, $b) = (pre::<true>(a), pre::<true>(b));
                    $e
                }),
                (Type::F32, false) => alu!(|$a: f32, $b: f32| $e),
                (Type::F64, false) => alu!(|$a: f64, $b: f64| $e),
                (Type::F16, _) => alu!(|a: Half, b: Half| {
                    let ($a, $b) = (a.0, b.0);
                    $e
                }),
                (Type::Bf16, _) => alu!(|a: BFloat16, b: BFloat16| {
                    let ($a, $b) = (a.0, b.0);
                    $e
                }),
                _ => return None,
            }
        };
    }
    Some(match operator {
        "eq" => compare!(|a, b| a == b),
        // Ordered: false where a NaN takes part.
        "ne" => compare!(|a, b| a < b || a > b),
        "lt" => compare!(|a, b| a < b),
        "le" => compare!(|a, b| a <= b),
        "gt" => compare!(|a, b| a > b),
        "ge" => compare!(|a, b| a >= b),
        "equ" => compare!(|a, b| !(a < b || a > b)),
        "neu" => compare!(|a, b| a != b),
        "ltu" => compare!(|a, b| !(a >= b)),
        "leu" => compare!(|a, b| !(a > b)),
        "gtu" => compare!(|a, b| !(a <= b)),
        "geu" => compare!(|a, b| !(a < b)),
        "num" => compare!(|a, b| !a.is_nan() && !b.is_nan()),
        "nan" => compare!(|a, b| a.is_nan() || b.is_nan()),
        _ => return None,
    })
}

fn integer(operator: &str, ty: Type) -> Option<Alu> {
    let ty = match ty {
        Type::B16 | Type::B32 | Type::B64 if !matches!(operator, "eq" | "ne") => return None,
        Type::B16 | Type::B32 | Type::B64 => ty.unsigned()?,
        _ => ty,
    };
    if matches!(operator, "lo" | "ls" | "hi" | "hs") && ty.is_signed() {
        return None;
    }
    match operator {
        "eq" => for_integers!(ty; T => alu!(|a: T, b: T| a == b)),
        "ne" => for_integers!(ty; T => alu!(|a: T, b: T| a != b)),
        "lt" | "lo" => for_integers!(ty; T => alu!(|a: T, b: T| a < b)),
        "le" | "ls" => for_integers!(ty; T => alu!(|a: T, b: T| a <= b)),
        "gt" | "hi" => for_integers!(ty; T => alu!(|a: T, b: T| a > b)),
        "ge" | "hs" => for_integers!(ty; T => alu!(|a: T, b: T| a >= b)),
        _ => None,
    }
}

pub(super) fn select(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    let ftz = name == "slct" && modifiers.take("ftz");
    let ty = modifiers.take_type()?;
    match name {
        "selp" => {
            let run = match ty.bytes() {
                2 => alu!(|a: u16, b: u16, p: bool| if p { a } else { b }),
                4 => alu!(|a: u32, b: u32, p: bool| if p { a } else { b }),
                8 => alu!(|a: u64, b: u64, p: bool| if p { a } else { b }),
                _ => return None,
            };
            Some(Selected::new(run, 3, ty))
        }
        "slct" => {
            let run = match (modifiers.take_type()?, ftz) {
                (Type::S32, false) => alu!(|a: u64, b: u64, c: i32| if c >= 0 { a } else { b }),
                (Type::F32, false) => alu!(|a: u64, b: u64, c: f32| if c >= 0.0 { a } else { b }),
                (Type::F32, true) => alu!(|a: u64, b: u64, c: f32| if pre::<true>(c) >= 0.0 { a } else { b }),
                _ => return None,
            };
            Some(Selected::new(run, 3, ty))
        }
        _ => None,
    }
}

/// What `set` writes for true, given 0 or 1 in the first source.
pub(crate) fn truth(ty: Type) -> Option<Alu> {
    Some(match ty {
        Type::U32 | Type::S32 => alu!(|a: bool| if a { u32::MAX } else { 0 }),
        Type::U16 | Type::S16 => alu!(|a: bool| if a { u16::MAX } else { 0 }),
        Type::F32 => alu!(|a: bool| if a { 1.0f32 } else { 0.0 }),
        Type::F16 => alu!(|a: bool| if a { 0x3c00u16 } else { 0 }),
        Type::Bf16 => alu!(|a: bool| if a { 0x3f80u16 } else { 0 }),
        _ => return None,
    })
}
