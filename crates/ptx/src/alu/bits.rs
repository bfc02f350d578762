//! Bit counting, fields and masks.

use super::modifiers::Modifiers;
use super::{Alu, Selected};
use crate::types::Type;

pub(super) fn select(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    let shift_amount = modifiers.take("shiftamt");
    let wrap = modifiers.one_of(&[("wrap", true), ("clamp", false)]);
    let ty = modifiers.take_type()?;
    if shift_amount && name != "bfind" || wrap.is_some() && !matches!(name, "szext" | "bmsk") {
        return None;
    }
    let (run, sources): (Alu, usize) = match name {
        "popc" => (for_bits!(ty; T => alu!(|a: T| a.count_ones()))?, 1),
        "clz" => (for_bits!(ty; T => alu!(|a: T| a.leading_zeros()))?, 1),
        "brev" => (for_bits!(ty; T => alu!(|a: T| a.reverse_bits()))?, 1),
        "bfind" if shift_amount => (
            for_wide_integers!(ty; T => alu!(|a: T| {
                let first = first_bit(significant(i128::from(a)));
                if first == u32::MAX { first } else { T::BITS - 1 - first }
            }))?,
            1,
        ),
        "bfind" => (for_wide_integers!(ty; T => alu!(|a: T| first_bit(significant(i128::from(a)))))?, 1),
        "fns" if ty == Type::B32 => (alu!(|a: u32, b: u32, c: i32| nth_set(a, b, c)), 3),
        "bfe" => (
            match ty {
                Type::U32 => alu!(|a: u32, b: u32, c: u32| extract(u64::from(a), b, c, 32) as u32),
                Type::U64 => alu!(|a: u64, b: u32, c: u32| extract(a, b, c, 64)),
                Type::S32 => alu!(|a: u32, b: u32, c: u32| extract_signed(a as i32 as i64, b, c, 32) as u32),
                Type::S64 => alu!(|a: u64, b: u32, c: u32| extract_signed(a as i64, b, c, 64)),
                _ => return None,
            },
            3,
        ),
        "bfi" => (
            match ty {
                Type::B32 => {
                    alu!(|a: u32, b: u32, c: u32, d: u32| insert(u64::from(a), u64::from(b), c, d) as u32)
                }
                Type::B64 => alu!(|a: u64, b: u64, c: u32, d: u32| insert(a, b, c, d)),
                _ => return None,
            },
            4,
        ),
        "szext" => (
            match (ty, wrap?) {
                (Type::U32, true) => alu!(|a: u32, b: u32| mask(0, b & 31) as u32 & a),
                (Type::U32, false) => alu!(|a: u32, b: u32| mask(0, b.min(32)) as u32 & a),
                (Type::S32, true) => alu!(|a: i32, b: u32| sign_extend(a, b & 31)),
                (Type::S32, false) => alu!(|a: i32, b: u32| sign_extend(a, b.min(32))),
                _ => return None,
            },
            2,
        ),
        "bmsk" => (
            match (ty, wrap?) {
                (Type::B32, true) => alu!(|a: u32, b: u32| mask(a & 31, b & 31) as u32),
                (Type::B32, false) => alu!(|a: u32, b: u32| mask(a.min(32), b.min(32)) as u32),
                _ => return None,
            },
            2,
        ),
        _ => return None,
    };
    Some(Selected::new(run, sources, ty))
}

/// The bits that differ from the sign.
fn significant(value: i128) -> u64 {
    if value < 0 { !value as u64 } else { value as u64 }
}

fn first_bit(value: u64) -> u32 {
    if value == 0 { u32::MAX } else { 63 - value.leading_zeros() }
}

/// `length` ones from `start`; both at most 64.
fn mask(start: u32, length: u32) -> u64 {
    let ones = if length >= 64 { u64::MAX } else { (1u64 << length) - 1 };
    if start >= 64 { 0 } else { ones << start }
}

fn sign_extend(value: i32, width: u32) -> i32 {
    match width {
        0 => 0,
        32.. => value,
        _ => value << (32 - width) >> (32 - width),
    }
}

fn extract(a: u64, start: u32, length: u32, width: u32) -> u64 {
    let (start, length) = (start & 0xff, length & 0xff);
    if start >= width { 0 } else { a >> start & mask(0, length.min(64)) }
}

/// `a` comes sign-extended; positions beyond the operand's width read its sign.
fn extract_signed(a: i64, start: u32, length: u32, width: u32) -> u64 {
    let (start, length) = (start & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    let shifted = a >> start.min(63);
    let length = length.min(width).min(64);
    (shifted << (64 - length) >> (64 - length)) as u64
}

fn insert(a: u64, b: u64, start: u32, length: u32) -> u64 {
    let field = mask(start & 0xff, (length & 0xff).min(64));
    let moved = if start & 0xff >= 64 { 0 } else { a << (start & 0xff) };
    b & !field | moved & field
}

/// The position of the `offset`-th set bit from `base`, upwards, or downwards if `offset` is negative.
fn nth_set(bits: u32, base: u32, offset: i32) -> u32 {
    let base = base & 31;
    if offset == 0 {
        return if bits >> base & 1 == 1 { base } else { u32::MAX };
    }
    let step = offset.signum();
    let (mut position, mut left) = (base as i32, offset.unsigned_abs());
    while (0..32).contains(&position) {
        left -= bits >> position & 1;
        if left == 0 {
            return position as u32;
        }
        position += step;
    }
    u32::MAX
}
