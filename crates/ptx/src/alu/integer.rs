//! Integer addition, division, comparison-like and absolute-value instructions.

use super::modifiers::Modifiers;
use super::{Alu, Selected};
use crate::types::Type;

pub(super) fn select(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    let saturate = modifiers.take("sat");
    let relu = modifiers.take("relu");
    let ty = modifiers.take_type()?;
    if matches!(ty, Type::U16x2 | Type::S16x2) {
        let run = packed(name, ty == Type::S16x2, relu)?;
        return (!saturate).then(|| Selected::new(run, if name == "neg" { 1 } else { 2 }, ty));
    }
    let (run, sources): (Alu, usize) = match name {
        "add" | "sub" if saturate => {
            if ty != Type::S32 {
                return None;
            }
            let run = match name {
                "add" => alu!(|a: i32, b: i32| a.saturating_add(b)),
                _ => alu!(|a: i32, b: i32| a.saturating_sub(b)),
            };
            return Some(Selected::new(run, 2, ty));
        }
        _ if saturate => return None,
        "min" | "max" if relu => {
            if ty != Type::S32 {
                return None;
            }
            match name {
                "min" => (alu!(|a: i32, b: i32| a.min(b).max(0)), 2),
                _ => (alu!(|a: i32, b: i32| a.max(b).max(0)), 2),
            }
        }
        _ if relu => return None,
        "add" => (for_integers!(ty; T => alu!(|a: T, b: T| a.wrapping_add(b)))?, 2),
        "sub" => (for_integers!(ty; T => alu!(|a: T, b: T| a.wrapping_sub(b)))?, 2),
        "div" => (for_integers!(ty; T => alu!(|a: T, b: T| if b == 0 { !0 } else { a.wrapping_div(b) }))?, 2),
        "rem" => (for_integers!(ty; T => alu!(|a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) }))?, 2),
        "min" => (for_integers!(ty; T => alu!(|a: T, b: T| a.min(b)))?, 2),
        "max" => (for_integers!(ty; T => alu!(|a: T, b: T| a.max(b)))?, 2),
        "sad" => (for_integers!(ty; T => alu!(|a: T, b: T, c: T| c.wrapping_add(a.abs_diff(b) as T)))?, 3),
        "abs" => {
            (for_types!(ty; [S16 => i16, S32 => i32, S64 => i64]; T => alu!(|a: T| a.wrapping_abs()))?, 1)
        }
        "neg" => {
            (for_types!(ty; [S16 => i16, S32 => i32, S64 => i64]; T => alu!(|a: T| a.wrapping_neg()))?, 1)
        }
        _ => return None,
    };
    Some(Selected::new(run, sources, ty))
}

fn join(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

fn packed(name: &str, signed: bool, relu: bool) -> Option<Alu> {
    macro_rules! halves {
        ($t:ty; |$a:ident, $b:ident| $e:expr) => {
            alu!(|a: u32, b: u32| {
                let one = |$a: $t, $b: $t| ($e) as u16;
                join(one(a as $t, b as $t), one((a >> 16) as $t, (b >> 16) as $t))
            })
        };
    }
    Some(match (name, signed, relu) {
        ("add", _, false) => halves!(u16; |a, b| a.wrapping_add(b)),
        ("sub", _, false) => halves!(u16; |a, b| a.wrapping_sub(b)),
        ("neg", true, false) => halves!(u16; |a, _b| a.wrapping_neg()),
        ("min", false, false) => halves!(u16; |a, b| a.min(b)),
        ("max", false, false) => halves!(u16; |a, b| a.max(b)),
        ("min", true, false) => halves!(i16; |a, b| a.min(b)),
        ("max", true, false) => halves!(i16; |a, b| a.max(b)),
        ("min", true, true) => halves!(i16; |a, b| a.min(b).max(0)),
        ("max", true, true) => halves!(i16; |a, b| a.max(b).max(0)),
        _ => return None,
    })
}
