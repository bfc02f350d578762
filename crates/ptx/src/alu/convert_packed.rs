//! `cvt` of pairs, and of 8-bit floating point.

use super::convert::positive;
use super::minifloat::{self, BF16, E4M3, E5M2, F16, Format};
use super::modifiers::Modifiers;
use super::rounding::Rounding;
use super::value::Value;
use super::{Alu, Selected};
use crate::types::Type;

pub(super) fn select(modifiers: &mut Modifiers) -> Option<Selected> {
    let rounding = Rounding::take(modifiers)?;
    let finite = modifiers.take("satfinite");
    let relu = modifiers.take("relu");
    let to = modifiers.take_type()?;
    let from = modifiers.take_type()?;
    let (run, sources): (Alu, usize) = match (to, from, finite) {
        (Type::F16x2 | Type::Bf16x2, Type::F32, _) => (from_singles(to, rounding, relu, finite)?, 2),
        (Type::E4m3x2, Type::F32, true) => (pair_of_bytes::<true>(relu), 2),
        (Type::E5m2x2, Type::F32, true) => (pair_of_bytes::<false>(relu), 2),
        (Type::E4m3x2, Type::F16x2, true) => (narrow::<true>(relu), 1),
        (Type::E5m2x2, Type::F16x2, true) => (narrow::<false>(relu), 1),
        (Type::F16x2, Type::E4m3x2, false) => (widen::<true>(relu), 1),
        (Type::F16x2, Type::E5m2x2, false) => (widen::<false>(relu), 1),
        _ => return None,
    };
    Some(Selected::new(run, sources, from))
}

fn limited(value: f64, relu: bool) -> f64 {
    if relu { positive(value) } else { value }
}

/// The first source goes to the upper half.
fn from_singles(to: Type, rounding: Rounding, relu: bool, finite: bool) -> Option<Alu> {
    macro_rules! pair {
        ($format:ident, $mode:ident, $relu:literal, $encode:ident) => {
            alu!(|a: f32, b: f32| {
                let one =
                    |x: f32| minifloat::$encode(&$format, limited(f64::from(x), $relu), Rounding::$mode);
                one(a) << 16 | one(b)
            })
        };
    }
    macro_rules! modes {
        ($format:ident, $mode:ident) => {
            match (relu, finite) {
                (false, false) => pair!($format, $mode, false, encode),
                (true, false) => pair!($format, $mode, true, encode),
                (false, true) => pair!($format, $mode, false, encode_finite),
                (true, true) => pair!($format, $mode, true, encode_finite),
            }
        };
    }
    Some(match (to, rounding) {
        (Type::F16x2, Rounding::Nearest) => modes!(F16, Nearest),
        (Type::F16x2, Rounding::Zero) => modes!(F16, Zero),
        (Type::Bf16x2, Rounding::Nearest) => modes!(BF16, Nearest),
        (Type::Bf16x2, Rounding::Zero) => modes!(BF16, Zero),
        _ => return None,
    })
}

fn byte_format<const E4: bool>() -> &'static Format {
    if E4 { &E4M3 } else { &E5M2 }
}

fn byte<const E4: bool>(value: f64, relu: bool) -> u64 {
    minifloat::encode_finite(byte_format::<E4>(), limited(value, relu), Rounding::Nearest)
}

fn pair_of_bytes<const E4: bool>(relu: bool) -> Alu {
    fn run<const E4: bool, const RELU: bool>(out: &mut super::Lanes, s: [&super::Lanes; 4]) {
        for i in 0..super::LANES {
            let [a, b] = [s[0][i], s[1][i]].map(|bits| byte::<E4>(f64::from(f32::of(bits)), RELU));
            out[i] = a << 8 | b;
        }
    }
    if relu { run::<E4, true> } else { run::<E4, false> }
}

fn narrow<const E4: bool>(relu: bool) -> Alu {
    fn run<const E4: bool, const RELU: bool>(out: &mut super::Lanes, s: [&super::Lanes; 4]) {
        for i in 0..super::LANES {
            let [a, b] = [s[0][i] >> 16 & 0xffff, s[0][i] & 0xffff]
                .map(|bits| byte::<E4>(minifloat::decode(&F16, bits), RELU));
            out[i] = a << 8 | b;
        }
    }
    if relu { run::<E4, true> } else { run::<E4, false> }
}

fn widen<const E4: bool>(relu: bool) -> Alu {
    fn run<const E4: bool, const RELU: bool>(out: &mut super::Lanes, s: [&super::Lanes; 4]) {
        for i in 0..super::LANES {
            let [a, b] = [s[0][i] >> 8 & 0xff, s[0][i] & 0xff].map(|bits| {
                let value = minifloat::decode(byte_format::<E4>(), bits);
                minifloat::encode(&F16, limited(value, RELU), Rounding::Nearest)
            });
            out[i] = a << 16 | b;
        }
    }
    if relu { run::<E4, true> } else { run::<E4, false> }
}
