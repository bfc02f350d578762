//! Integer multiplication, multiply-add and dot products.

use super::modifiers::Modifiers;
use super::{Alu, Selected};
use crate::types::Type;

pub(super) fn select(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    if matches!(name, "dp4a" | "dp2a") {
        return dot(name, modifiers);
    }
    let part = modifiers.one_of(&[("lo", "lo"), ("hi", "hi"), ("wide", "wide")])?;
    let saturate = modifiers.take("sat");
    let ty = modifiers.take_type()?;
    let run: Alu = match (name, part, saturate) {
        ("mul", "lo", false) => for_integers!(ty; T => alu!(|a: T, b: T| a.wrapping_mul(b)))?,
        ("mul", "hi", false) => high(ty)?,
        ("mul", "wide", false) => wide(ty)?,
        ("mad", "lo", false) => {
            for_integers!(ty; T => alu!(|a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c)))?
        }
        ("mad", "hi", false) => high_add(ty)?,
        ("mad", "hi", true) if ty == Type::S32 => alu!(|a: i32, b: i32, c: i32| {
            (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c)
        }),
        ("mad", "wide", false) => wide_add(ty)?,
        ("mul24" | "mad24", _, _) => return product24(name, part, saturate, ty),
        _ => return None,
    };
    Some(Selected::new(run, if name == "mul" { 2 } else { 3 }, ty))
}

fn high(ty: Type) -> Option<Alu> {
    Some(match ty {
        Type::U16 => alu!(|a: u16, b: u16| ((u32::from(a) * u32::from(b)) >> 16) as u16),
        Type::S16 => alu!(|a: i16, b: i16| ((i32::from(a) * i32::from(b)) >> 16) as i16),
        Type::U32 => alu!(|a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        Type::S32 => alu!(|a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        Type::U64 => alu!(|a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Type::S64 => alu!(|a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        _ => return None,
    })
}

fn high_add(ty: Type) -> Option<Alu> {
    Some(match ty {
        Type::U16 => {
            alu!(|a: u16, b: u16, c: u16| (((u32::from(a) * u32::from(b)) >> 16) as u16).wrapping_add(c))
        }
        Type::S16 => {
            alu!(|a: i16, b: i16, c: i16| (((i32::from(a) * i32::from(b)) >> 16) as i16).wrapping_add(c))
        }
        Type::U32 => {
            alu!(|a: u32, b: u32, c: u32| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c))
        }
        Type::S32 => {
            alu!(|a: i32, b: i32, c: i32| (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c))
        }
        Type::U64 => {
            alu!(|a: u64, b: u64, c: u64| (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c))
        }
        Type::S64 => {
            alu!(|a: i64, b: i64, c: i64| (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c))
        }
        _ => return None,
    })
}

fn wide(ty: Type) -> Option<Alu> {
    Some(match ty {
        Type::U16 => alu!(|a: u16, b: u16| u32::from(a) * u32::from(b)),
        Type::S16 => alu!(|a: i16, b: i16| i32::from(a) * i32::from(b)),
        Type::U32 => alu!(|a: u32, b: u32| u64::from(a) * u64::from(b)),
        Type::S32 => alu!(|a: i32, b: i32| i64::from(a) * i64::from(b)),
        _ => return None,
    })
}

fn wide_add(ty: Type) -> Option<Alu> {
    Some(match ty {
        Type::U16 => alu!(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c)),
        Type::S16 => alu!(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c)),
        Type::U32 => alu!(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c)),
        Type::S32 => alu!(|a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c)),
        _ => return None,
    })
}

fn unsigned24(a: u32, b: u32) -> u64 {
    u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)
}

fn signed24(a: i32, b: i32) -> i64 {
    i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)
}

/// `.lo` is bits 0..32 of the 48-bit product, `.hi` bits 16..48.
fn product24(name: &str, part: &str, saturate: bool, ty: Type) -> Option<Selected> {
    let run: Alu = match (name, part, ty, saturate) {
        ("mul24", "lo", Type::U32, false) => alu!(|a: u32, b: u32| unsigned24(a, b) as u32),
        ("mul24", "lo", Type::S32, false) => alu!(|a: i32, b: i32| signed24(a, b) as i32),
        ("mul24", "hi", Type::U32, false) => alu!(|a: u32, b: u32| (unsigned24(a, b) >> 16) as u32),
        ("mul24", "hi", Type::S32, false) => alu!(|a: i32, b: i32| (signed24(a, b) >> 16) as i32),
        ("mad24", "lo", Type::U32, false) => {
            alu!(|a: u32, b: u32, c: u32| (unsigned24(a, b) as u32).wrapping_add(c))
        }
        ("mad24", "lo", Type::S32, false) => {
            alu!(|a: i32, b: i32, c: i32| (signed24(a, b) as i32).wrapping_add(c))
        }
        ("mad24", "hi", Type::U32, false) => {
            alu!(|a: u32, b: u32, c: u32| ((unsigned24(a, b) >> 16) as u32).wrapping_add(c))
        }
        ("mad24", "hi", Type::S32, false) => {
            alu!(|a: i32, b: i32, c: i32| ((signed24(a, b) >> 16) as i32).wrapping_add(c))
        }
        ("mad24", "hi", Type::S32, true) => {
            alu!(|a: i32, b: i32, c: i32| ((signed24(a, b) >> 16) as i32).saturating_add(c))
        }
        _ => return None,
    };
    Some(Selected::new(run, if name == "mul24" { 2 } else { 3 }, ty))
}

fn byte(word: u32, index: u32, signed: bool) -> i32 {
    let byte = (word >> (index * 8)) as u8;
    if signed { i32::from(byte as i8) } else { i32::from(byte) }
}

fn half_word(word: u32, index: u32, signed: bool) -> i32 {
    let half = (word >> (index * 16)) as u16;
    if signed { i32::from(half as i16) } else { i32::from(half) }
}

fn dot4(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    let products = (0..4).map(|i| byte(a, i, a_signed) * byte(b, i, b_signed));
    products.fold(c, |sum, product| sum.wrapping_add(product as u32))
}

fn dot2(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool, first: u32) -> u32 {
    let products = (0..2).map(|i| half_word(a, i, a_signed).wrapping_mul(byte(b, first + i, b_signed)));
    products.fold(c, |sum, product| sum.wrapping_add(product as u32))
}

fn dot(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    let high = name == "dp2a" && modifiers.one_of(&[("lo", false), ("hi", true)])?;
    let signed = |ty| match ty {
        Type::U32 => Some(false),
        Type::S32 => Some(true),
        _ => None,
    };
    let a_signed = signed(modifiers.take_type()?)?;
    let b_signed = signed(modifiers.take_type()?)?;
    macro_rules! signs {
        ($run:ident $(, $last:literal)?) => {
            match (a_signed, b_signed) {
                (false, false) => alu!(|a: u32, b: u32, c: u32| $run(a, b, c, false, false $(, $last)?)),
                (false, true) => alu!(|a: u32, b: u32, c: u32| $run(a, b, c, false, true $(, $last)?)),
                (true, false) => alu!(|a: u32, b: u32, c: u32| $run(a, b, c, true, false $(, $last)?)),
                (true, true) => alu!(|a: u32, b: u32, c: u32| $run(a, b, c, true, true $(, $last)?)),
            }
        };
    }
    let run = match (name, high) {
        ("dp4a", _) => signs!(dot4),
        (_, false) => signs!(dot2, 0),
        (_, true) => signs!(dot2, 2),
    };
    Some(Selected::new(run, 3, Type::U32))
}
