//! Bitwise logic, shifts and byte permutation.

use super::modifiers::Modifiers;
use super::{Alu, Selected};
use crate::types::Type;

macro_rules! for_logic {
    ($ty:expr; $T:ident => $body:expr) => {
        for_types!($ty; [Pred => bool, B16 => u16, B32 => u32, B64 => u64]; $T => $body)
    };
}

pub(super) fn select(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    match name {
        "shf" => return funnel(modifiers),
        "prmt" => return permute(modifiers),
        _ => {}
    }
    let ty = modifiers.take_type()?;
    let (run, sources): (Alu, usize) = match name {
        "and" => (for_logic!(ty; T => alu!(|a: T, b: T| a & b))?, 2),
        "or" => (for_logic!(ty; T => alu!(|a: T, b: T| a | b))?, 2),
        "xor" => (for_logic!(ty; T => alu!(|a: T, b: T| a ^ b))?, 2),
        "not" => (for_logic!(ty; T => alu!(|a: T| !a))?, 1),
        "cnot" => (for_bits!(ty; T => alu!(|a: T| T::from(a == 0)))?, 1),
        "shl" => (for_bits!(ty; T => alu!(|a: T, b: u32| a.checked_shl(b).unwrap_or(0)))?, 2),
        "shr" => {
            let ty = if ty.is_signed() { ty } else { ty.unsigned()? };
            (
                for_types!(ty; [U16 => u16, U32 => u32, U64 => u64]; T => {
                    alu!(|a: T, b: u32| a.checked_shr(b).unwrap_or(0))
                })
                .or_else(|| {
                    for_types!(ty; [S16 => i16, S32 => i32, S64 => i64]; T => {
                        alu!(|a: T, b: u32| a >> b.min(T::BITS - 1))
                    })
                })?,
                2,
            )
        }
        "lop3" if ty == Type::B32 => (alu!(|a: u32, b: u32, c: u32, table: u32| lookup(a, b, c, table)), 4),
        _ => return None,
    };
    Some(Selected::new(run, sources, ty))
}

/// Bit `4a + 2b + c` of the table, for each bit of the words.
fn lookup(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let mut result = 0;
    let term = |bit: u32, word: u32| if bit != 0 { word } else { !word };
    for row in 0..8 {
        let chosen = (table >> row & 1).wrapping_neg();
        result |= chosen & term(row & 4, a) & term(row & 2, b) & term(row & 1, c);
    }
    result
}

fn funnel(modifiers: &mut Modifiers) -> Option<Selected> {
    let left = modifiers.one_of(&[("l", true), ("r", false)])?;
    let wrap = modifiers.one_of(&[("wrap", true), ("clamp", false)])?;
    if modifiers.take_type()? != Type::B32 {
        return None;
    }
    let run = match (left, wrap) {
        (true, true) => alu!(|a: u32, b: u32, c: u32| (pair(a, b) << (c & 31) >> 32) as u32),
        (true, false) => alu!(|a: u32, b: u32, c: u32| (pair(a, b) << c.min(32) >> 32) as u32),
        (false, true) => alu!(|a: u32, b: u32, c: u32| (pair(a, b) >> (c & 31)) as u32),
        (false, false) => alu!(|a: u32, b: u32, c: u32| (pair(a, b) >> c.min(32)) as u32),
    };
    Some(Selected::new(run, 3, Type::B32))
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn permute(modifiers: &mut Modifiers) -> Option<Selected> {
    if modifiers.take_type()? != Type::B32 {
        return None;
    }
    let run = match modifiers.take_first() {
        None => alu!(|a: u32, b: u32, c: u32| {
            let bytes = pair(a, b);
            (0..4).fold(0u32, |result, i| {
                let selector = c >> (4 * i) & 15;
                let byte = (bytes >> (8 * (selector & 7))) as u8;
                let byte = if selector & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
                result | u32::from(byte) << (8 * i)
            })
        }),
        Some("f4e") => alu!(|a: u32, b: u32, c: u32| pick(a, b, |i| i + (c & 3))),
        Some("b4e") => alu!(|a: u32, b: u32, c: u32| pick(a, b, |i| (c & 3).wrapping_sub(i) & 7)),
        Some("rc8") => alu!(|a: u32, b: u32, c: u32| pick(a, b, |_| c & 3)),
        Some("ecl") => alu!(|a: u32, b: u32, c: u32| pick(a, b, |i| i.max(c & 3))),
        Some("ecr") => alu!(|a: u32, b: u32, c: u32| pick(a, b, |i| i.min(c & 3))),
        Some("rc16") => alu!(|a: u32, b: u32, c: u32| pick(a, b, |i| 2 * (c & 1) + (i & 1))),
        Some(_) => return None,
    };
    Some(Selected::new(run, 3, Type::B32))
}

/// Four bytes of the pair, the index of each given.
fn pick(a: u32, b: u32, index: impl Fn(u32) -> u32) -> u32 {
    let bytes = pair(a, b);
    (0..4).fold(0, |result, i| result | u32::from((bytes >> (8 * (index(i) & 7))) as u8) << (8 * i))
}
