//! SIMD video instructions on whole words: two halves or four bytes, without selectors or masks.
//!
//! What varies besides the operation is small enough to be data: it is the fourth source.

use super::Alu;
use super::modifiers::Modifiers;
use crate::types::Type;

const BYTES: u64 = 1 << 8;
const A_SIGNED: u64 = 1 << 9;
const B_SIGNED: u64 = 1 << 10;
const D_SIGNED: u64 = 1 << 11;
const SATURATE: u64 = 1 << 12;
const SUM: u64 = 1 << 13;

const OPERATIONS: [&str; 6] = ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"];

/// The function, and its fourth source.
pub(crate) fn select(name: &str, modifiers: &mut Modifiers) -> Option<(Alu, u64)> {
    let (stem, bytes) = match name.strip_suffix('4') {
        Some(stem) => (stem, true),
        None => (name.strip_suffix('2')?, false),
    };
    let operation = OPERATIONS.iter().position(|known| *known == stem)? as u64;
    let mut how = operation | if bytes { BYTES } else { 0 };
    for bit in [D_SIGNED, A_SIGNED, B_SIGNED] {
        match modifiers.take_type()? {
            Type::U32 => {}
            Type::S32 => how |= bit,
            _ => return None,
        }
    }
    if modifiers.take("sat") {
        how |= SATURATE;
    }
    if modifiers.take("add") {
        how |= SUM;
    }
    Some((alu!(|a: u32, b: u32, c: u32, how: u64| combine(a, b, c, how)), how))
}

fn element(word: u32, index: u32, bits: u32, signed: bool) -> i32 {
    let shifted = word << (32 - bits * (index + 1));
    if signed { shifted as i32 >> (32 - bits) } else { (shifted >> (32 - bits)) as i32 }
}

fn combine(a: u32, b: u32, c: u32, how: u64) -> u32 {
    let bits = if how & BYTES != 0 { 8 } else { 16 };
    let signed = how & D_SIGNED != 0;
    let (least, most) =
        if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    let (mut word, mut sum) = (0u32, c);
    for index in 0..32 / bits {
        let a = element(a, index, bits, how & A_SIGNED != 0);
        let b = element(b, index, bits, how & B_SIGNED != 0);
        let mut value: i32 = match how & 0xff {
            0 => a + b,
            1 => a - b,
            2 => (a + b + i32::from(a + b >= 0)) >> 1,
            3 => (a - b).abs(),
            4 => a.min(b),
            _ => a.max(b),
        };
        if how & SATURATE != 0 {
            value = value.clamp(least, most);
        }
        sum = sum.wrapping_add(value as u32);
        word |= (value as u32 & ((1 << bits) - 1)) << (bits * index);
    }
    if how & SUM != 0 { sum } else { word }
}
