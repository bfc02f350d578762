//! `f16`, `bf16` and their pairs: computed without loss in `f64`, rounded once.

use super::float::{greatest, least, saturate64, xor_signed};
use super::modifiers::Modifiers;
use super::rounding::{Rounding, add_odd, fma_odd};
use super::value::{BFloat16, Half};
use super::{Alu, Selected, Value};
use crate::types::Type;

/// What is done to sources and results besides the operation.
#[derive(Clone, Copy, PartialEq)]
enum Finish {
    Plain,
    Flush,
    Saturate,
    FlushSaturate,
    Relu,
    FlushRelu,
}

/// Subnormal halves as zeros; `bf16` has no `.ftz`.
fn flush(value: f64) -> f64 {
    if value.abs() < 6.103515625e-5 { 0.0f64.copysign(value) } else { value }
}

fn finish(kind: Finish, value: f64) -> f64 {
    match kind {
        Finish::Plain => value,
        // The result is flushed by its rounded magnitude: exactly half an ulp below the limit rounds up to it.
        Finish::Flush => flush_rounded(value),
        Finish::Saturate => saturate64(value),
        Finish::FlushSaturate => saturate64(flush_rounded(value)),
        Finish::Relu => relu(value),
        Finish::FlushRelu => relu(flush_rounded(value)),
    }
}

fn flush_rounded(value: f64) -> f64 {
    flush(Half::of(Half(value).bits()).0)
}

fn relu(value: f64) -> f64 {
    if value <= 0.0 { 0.0 } else { value }
}

fn prepare(kind: Finish, value: f64) -> f64 {
    if matches!(kind, Finish::Flush | Finish::FlushSaturate | Finish::FlushRelu) {
        flush(value)
    } else {
        value
    }
}

fn half(bits: u32, kind: Finish) -> f64 {
    prepare(kind, Half::of(u64::from(bits)).0)
}

fn brain(bits: u32, _: Finish) -> f64 {
    BFloat16::of(u64::from(bits)).0
}

/// One operation for both formats, single or in pairs.
macro_rules! halves {
    ($ty:expr, $finish:expr; |$($x:ident),+| $e:expr) => {
        match $ty {
            Type::F16 | Type::F16x2 => match $finish {
                Finish::Plain => halves!(@ $ty, half, Half, Plain; |$($x),+| $e),
                Finish::Flush => halves!(@ $ty, half, Half, Flush; |$($x),+| $e),
                Finish::Saturate => halves!(@ $ty, half, Half, Saturate; |$($x),+| $e),
                Finish::FlushSaturate => halves!(@ $ty, half, Half, FlushSaturate; |$($x),+| $e),
                Finish::Relu => halves!(@ $ty, half, Half, Relu; |$($x),+| $e),
                Finish::FlushRelu => halves!(@ $ty, half, Half, FlushRelu; |$($x),+| $e),
            },
            _ => match $finish {
                Finish::Plain => halves!(@ $ty, brain, BFloat16, Plain; |$($x),+| $e),
                Finish::Relu => halves!(@ $ty, brain, BFloat16, Relu; |$($x),+| $e),
                _ => return None,
            },
        }
    };
    (@ $ty:expr, $widen:ident, $format:ident, $finish:ident; |$($x:ident),+| $e:expr) => {
        if matches!($ty, Type::F16 | Type::Bf16) {
            alu!(|$($x: u32),+| {
                $(let $x = $widen($x, Finish::$finish);)+
                $format(finish(Finish::$finish, $e))
            })
        } else {
            alu!(|$($x: u32),+| {
                let one = |shift: u32| {
                    $(let $x = $widen($x >> shift & 0xffff, Finish::$finish);)+
                    $format(finish(Finish::$finish, $e)).bits()
                };
                one(16) << 16 | one(0)
            })
        }
    };
}

pub(super) fn select(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    if matches!(name, "ex2" | "tanh") {
        return approximate(name, modifiers);
    }
    let arithmetic = matches!(name, "add" | "sub" | "mul" | "fma");
    if arithmetic && !matches!(Rounding::take(modifiers), None | Some(Rounding::Nearest)) {
        return None;
    }
    let ftz = modifiers.take("ftz");
    let sat = arithmetic && modifiers.take("sat");
    let relu = name == "fma" && modifiers.take("relu");
    let nan = matches!(name, "min" | "max") && modifiers.take("NaN");
    let xor_sign = matches!(name, "min" | "max") && modifiers.take("xorsign");
    if xor_sign && !modifiers.take("abs") {
        return None;
    }
    let ty = modifiers.take_type()?;
    let finish_as = match (ftz, sat, relu) {
        (false, false, false) => Finish::Plain,
        (true, false, false) => Finish::Flush,
        (false, true, false) => Finish::Saturate,
        (true, true, false) => Finish::FlushSaturate,
        (false, false, true) => Finish::Relu,
        (true, false, true) => Finish::FlushRelu,
        _ => return None,
    };
    let (run, sources): (Alu, usize) = match (name, nan, xor_sign) {
        ("add", ..) => (halves!(ty, finish_as; |a, b| add_odd(a, b)), 2),
        ("sub", ..) => (halves!(ty, finish_as; |a, b| add_odd(a, -b)), 2),
        ("mul", ..) => (halves!(ty, finish_as; |a, b| a * b), 2),
        ("fma", ..) => (halves!(ty, finish_as; |a, b, c| fma_odd(a, b, c)), 3),
        ("min", false, false) => (halves!(ty, finish_as; |a, b| least(a, b, false)), 2),
        ("min", true, false) => (halves!(ty, finish_as; |a, b| least(a, b, true)), 2),
        ("max", false, false) => (halves!(ty, finish_as; |a, b| greatest(a, b, false)), 2),
        ("max", true, false) => (halves!(ty, finish_as; |a, b| greatest(a, b, true)), 2),
        ("min", false, true) => {
            (halves!(ty, finish_as; |a, b| xor_signed(|a, b| least(a, b, false), a, b)), 2)
        }
        ("min", true, true) => (halves!(ty, finish_as; |a, b| xor_signed(|a, b| least(a, b, true), a, b)), 2),
        ("max", false, true) => {
            (halves!(ty, finish_as; |a, b| xor_signed(|a, b| greatest(a, b, false), a, b)), 2)
        }
        ("max", true, true) => {
            (halves!(ty, finish_as; |a, b| xor_signed(|a, b| greatest(a, b, true), a, b)), 2)
        }
        ("abs", ..) if !ftz => (sign_bits(ty, true), 1),
        ("neg", ..) if !ftz => (sign_bits(ty, false), 1),
        ("abs", ..) => (halves!(ty, finish_as; |a| a.abs()), 1),
        ("neg", ..) => (halves!(ty, finish_as; |a| -a), 1),
        _ => return None,
    };
    Some(Selected::new(run, sources, ty))
}

fn sign_bits(ty: Type, absolute: bool) -> Alu {
    match (ty.bytes() == 4, absolute) {
        (false, true) => alu!(|a: u16| a & 0x7fff),
        (false, false) => alu!(|a: u16| a ^ 0x8000),
        (true, true) => alu!(|a: u32| a & 0x7fff_7fff),
        (true, false) => alu!(|a: u32| a ^ 0x8000_8000),
    }
}

fn approximate(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    if !modifiers.take("approx") {
        return None;
    }
    // `ex2.approx.ftz.bf16`: the subnormals of `bf16` are too small to change a power of two.
    modifiers.take("ftz");
    let ty = modifiers.take_type()?;
    let run: Alu = match name {
        "ex2" => halves!(ty, Finish::Plain; |a| a.exp2()),
        _ => halves!(ty, Finish::Plain; |a| a.tanh()),
    };
    Some(Selected::new(run, 1, ty))
}
