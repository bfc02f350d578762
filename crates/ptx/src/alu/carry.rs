//! Extended-precision arithmetic through the carry register.
//!
//! A subtraction adds the complement: it leaves the carry of that, which is set where nothing was borrowed. The
//! division of 128-bit integers that NVIDIA's compiler emits reads it with `addc`.

use super::modifiers::Modifiers;
use super::{Alu2, Function, Selected};
use crate::types::Type;

/// Registers are bits: 32 or 64 of them, signed or not.
fn is_wide(ty: Type) -> Option<bool> {
    match ty {
        Type::U32 | Type::S32 => Some(false),
        Type::U64 | Type::S64 => Some(true),
        _ => None,
    }
}

macro_rules! by_width {
    ($wide:expr, |$a:ident, $b:ident, $c:ident, $d:ident| $e:expr) => {
        if $wide {
            alu2!(|$a: u64, $b: u64, $c: u64, $d: u64| $e)
        } else {
            alu2!(|$a: u32, $b: u32, $c: u32, $d: u32| $e)
        }
    };
}

pub(super) fn select(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    let writes_carry = modifiers.take("cc");
    let part = modifiers.one_of(&[("lo", false), ("hi", true)]);
    let ty = modifiers.take_type()?;
    let wide = is_wide(ty)?;
    let reads_carry = name.ends_with('c');
    if !reads_carry && !writes_carry {
        return None;
    }
    let (run, sources): (Alu2, usize) = match (name, part) {
        ("add", None) => (by_width!(wide, |a, b, _c, _d| a.overflowing_add(b)), 2),
        ("addc", None) => (
            by_width!(wide, |a, b, c, _d| {
                let (sum, first) = a.overflowing_add(b);
                let (sum, second) = sum.overflowing_add(c & 1);
                (sum, first || second)
            }),
            2,
        ),
        ("sub", None) => (
            by_width!(wide, |a, b, _c, _d| {
                let (rest, borrow) = a.overflowing_sub(b);
                (rest, !borrow)
            }),
            2,
        ),
        ("subc", None) => (
            by_width!(wide, |a, b, c, _d| {
                let (rest, first) = a.overflowing_sub(b);
                let (rest, second) = rest.overflowing_sub(1 - (c & 1));
                (rest, !(first || second))
            }),
            2,
        ),
        ("mad" | "madc", Some(high)) => (multiply_add(ty, high, reads_carry)?, 3),
        _ => return None,
    };
    let function = Function::Carry { run, reads_carry, writes_carry };
    Some(Selected { function, sources, literal: ty, sign_extend: None })
}

fn multiply_add(ty: Type, high: bool, carry: bool) -> Option<Alu2> {
    macro_rules! sum {
        ($t:ty, $wide:ty, $unsigned:ty, $shift:expr) => {
            if carry {
                alu2!(|a: $t, b: $t, c: $unsigned, d: u64| {
                    let product = ((<$wide>::from(a) * <$wide>::from(b)) >> $shift) as $unsigned;
                    let (sum, first) = product.overflowing_add(c);
                    let (sum, second) = sum.overflowing_add((d & 1) as $unsigned);
                    (sum, first || second)
                })
            } else {
                alu2!(|a: $t, b: $t, c: $unsigned, _d: u64| {
                    (((<$wide>::from(a) * <$wide>::from(b)) >> $shift) as $unsigned).overflowing_add(c)
                })
            }
        };
    }
    Some(match (ty, high) {
        (Type::U32, false) => sum!(u32, u64, u32, 0),
        (Type::U32, true) => sum!(u32, u64, u32, 32),
        (Type::S32, false) => sum!(i32, i64, u32, 0),
        (Type::S32, true) => sum!(i32, i64, u32, 32),
        (Type::U64, false) => sum!(u64, u128, u64, 0),
        (Type::U64, true) => sum!(u64, u128, u64, 64),
        (Type::S64, false) => sum!(i64, i128, u64, 0),
        (Type::S64, true) => sum!(i64, i128, u64, 64),
        _ => return None,
    })
}
