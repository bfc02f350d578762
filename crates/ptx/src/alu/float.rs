//! Single and double precision arithmetic.

use super::modifiers::Modifiers;
use super::rounding::{self, Rounding};
use super::{Alu, Selected, Value};
use crate::types::Type;

/// A subnormal number as zero of its sign.
#[inline(always)]
pub(super) fn flush(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits & 0x7f80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { value }
}

#[inline(always)]
pub(super) fn pre<const FTZ: bool>(value: f32) -> f32 {
    if FTZ { flush(value) } else { value }
}

/// A result: flushed, clamped to 0..=1 and its NaN made canonical.
#[inline(always)]
pub(super) fn post<const FTZ: bool, const SAT: bool>(value: f32) -> f32 {
    let value = pre::<FTZ>(value);
    if SAT {
        return if value > 0.0 { value.min(1.0) } else { 0.0 };
    }
    if value.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
}

pub(super) fn saturate64(value: f64) -> f64 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

/// Instantiates one expression for each combination of `.ftz` and `.sat`.
macro_rules! single {
    ($ftz:expr, $sat:expr; |$($x:ident),+| $e:expr) => {
        match ($ftz, $sat) {
            (false, false) => single!(@ false, false; |$($x),+| $e),
            (false, true) => single!(@ false, true; |$($x),+| $e),
            (true, false) => single!(@ true, false; |$($x),+| $e),
            (true, true) => single!(@ true, true; |$($x),+| $e),
        }
    };
    (@ $ftz:literal, $sat:literal; |$($x:ident),+| $e:expr) => {
        alu!(|$($x: f32),+| {
            $(let $x = pre::<$ftz>($x);)+
            post::<$ftz, $sat>($e)
        })
    };
}

/// Instantiates one expression for each directed mode, named `$mode` in it.
macro_rules! directed {
    ($rounding:expr; $mode:ident => $e:expr) => {
        match $rounding {
            Rounding::Zero => {
                const $mode: Rounding = Rounding::Zero;
                $e
            }
            Rounding::Down => {
                const $mode: Rounding = Rounding::Down;
                $e
            }
            _ => {
                const $mode: Rounding = Rounding::Up;
                $e
            }
        }
    };
}

pub(super) fn select(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    match name {
        "testp" => return test_property(modifiers),
        "copysign" => {
            let ty = modifiers.take_type()?;
            let run = match ty {
                Type::F32 => alu!(|a: u32, b: u32| a & 1 << 31 | b & !(1 << 31)),
                Type::F64 => alu!(|a: u64, b: u64| a & 1 << 63 | b & !(1 << 63)),
                _ => return None,
            };
            return Some(Selected::new(run, 2, ty));
        }
        "min" | "max" | "abs" | "neg" => return selection(name, modifiers),
        _ => {}
    }
    let rounding = Rounding::take(modifiers);
    let full = modifiers.take("full");
    let approximate = modifiers.take("approx");
    let ftz = modifiers.take("ftz");
    let sat = modifiers.take("sat");
    let ty = modifiers.take_type()?;
    if (full || approximate) && (name != "div" || ty != Type::F32 || rounding.is_some()) {
        return None;
    }
    let rounding = rounding.unwrap_or(Rounding::Nearest);
    let (run, sources) = match ty {
        Type::F32 => single_precision(name, rounding, ftz, sat)?,
        Type::F64 if !ftz => double_precision(name, rounding, sat)?,
        Type::F32x2 if !sat => packed(name, rounding, ftz)?,
        _ => return None,
    };
    Some(Selected::new(run, sources, ty))
}

fn single_precision(name: &str, rounding: Rounding, ftz: bool, sat: bool) -> Option<(Alu, usize)> {
    let nearest = rounding == Rounding::Nearest;
    Some(match (name, nearest) {
        ("add", true) => (single!(ftz, sat; |a, b| a + b), 2),
        ("sub", true) => (single!(ftz, sat; |a, b| a - b), 2),
        ("mul", true) => (single!(ftz, sat; |a, b| a * b), 2),
        ("div", true) => (single!(ftz, sat; |a, b| a / b), 2),
        ("fma" | "mad", true) => (fused(ftz, sat), 3),
        ("add", false) => {
            (directed!(rounding; MODE => single!(ftz, sat; |a, b| rounding::add32(MODE, a, b))), 2)
        }
        ("sub", false) => {
            (directed!(rounding; MODE => single!(ftz, sat; |a, b| rounding::add32(MODE, a, -b))), 2)
        }
        ("mul", false) => {
            (directed!(rounding; MODE => single!(ftz, sat; |a, b| rounding::mul32(MODE, a, b))), 2)
        }
        ("div", false) => {
            (directed!(rounding; MODE => single!(ftz, sat; |a, b| rounding::div32(MODE, a, b))), 2)
        }
        ("fma" | "mad", false) => {
            (directed!(rounding; MODE => single!(ftz, sat; |a, b, c| rounding::fma32(MODE, a, b, c))), 3)
        }
        _ => return None,
    })
}

/// The most common instruction of numeric kernels has a version for processors with the instruction for it.
fn fused(ftz: bool, sat: bool) -> Alu {
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        macro_rules! fast {
            ($ftz:literal, $sat:literal) => {{
                #[target_feature(enable = "avx2,fma")]
                fn run(out: &mut super::Lanes, s: [&super::Lanes; 4]) {
                    for i in 0..super::LANES {
                        let [a, b, c] = [s[0][i], s[1][i], s[2][i]].map(|bits| pre::<$ftz>(f32::of(bits)));
                        out[i] = post::<$ftz, $sat>(a.mul_add(b, c)).bits();
                    }
                }
                fn enter(out: &mut super::Lanes, s: [&super::Lanes; 4]) {
                    // SAFETY: this function is only chosen where the processor has both features.
                    unsafe { run(out, s) }
                }
                enter as Alu
            }};
        }
        return match (ftz, sat) {
            (false, false) => fast!(false, false),
            (false, true) => fast!(false, true),
            (true, false) => fast!(true, false),
            (true, true) => fast!(true, true),
        };
    }
    single!(ftz, sat; |a, b, c| a.mul_add(b, c))
}

fn double_precision(name: &str, rounding: Rounding, sat: bool) -> Option<(Alu, usize)> {
    if sat {
        let run = match (name, rounding) {
            ("add", Rounding::Nearest) => alu!(|a: f64, b: f64| saturate64(a + b)),
            ("mul", Rounding::Nearest) => alu!(|a: f64, b: f64| saturate64(a * b)),
            _ => return None,
        };
        return Some((run, 2));
    }
    let nearest = rounding == Rounding::Nearest;
    Some(match (name, nearest) {
        ("add", true) => (alu!(|a: f64, b: f64| a + b), 2),
        ("sub", true) => (alu!(|a: f64, b: f64| a - b), 2),
        ("mul", true) => (alu!(|a: f64, b: f64| a * b), 2),
        ("div", true) => (alu!(|a: f64, b: f64| a / b), 2),
        ("fma" | "mad", true) => (alu!(|a: f64, b: f64, c: f64| a.mul_add(b, c)), 3),
        ("add", false) => {
            (directed!(rounding; MODE => alu!(|a: f64, b: f64| rounding::add64(MODE, a, b))), 2)
        }
        ("sub", false) => {
            (directed!(rounding; MODE => alu!(|a: f64, b: f64| rounding::add64(MODE, a, -b))), 2)
        }
        ("mul", false) => {
            (directed!(rounding; MODE => alu!(|a: f64, b: f64| rounding::mul64(MODE, a, b))), 2)
        }
        ("div", false) => {
            (directed!(rounding; MODE => alu!(|a: f64, b: f64| rounding::div64(MODE, a, b))), 2)
        }
        ("fma" | "mad", false) => {
            (directed!(rounding; MODE => alu!(|a: f64, b: f64, c: f64| rounding::fma64(MODE, a, b, c))), 3)
        }
        _ => return None,
    })
}

fn packed(name: &str, rounding: Rounding, ftz: bool) -> Option<(Alu, usize)> {
    if rounding != Rounding::Nearest {
        return None;
    }
    macro_rules! pairs {
        ($sources:literal; |$($x:ident),+| $e:expr) => {{
            macro_rules! version {
                ($ftz:literal) => {
                    alu!(|$($x: u64),+| {
                        let one = |shift: u32| {
                            $(let $x = pre::<$ftz>(f32::from_bits(($x >> shift) as u32));)+
                            u64::from(post::<$ftz, false>($e).to_bits())
                        };
                        one(32) << 32 | one(0)
                    })
                };
            }
            (if ftz { version!(true) } else { version!(false) }, $sources)
        }};
    }
    Some(match name {
        "add" => pairs!(2; |a, b| a + b),
        "sub" => pairs!(2; |a, b| a - b),
        "mul" => pairs!(2; |a, b| a * b),
        "fma" => pairs!(3; |a, b, c| a.mul_add(b, c)),
        _ => return None,
    })
}

/// The smaller number, -0 below +0; a NaN only if both are, or if one is and `nan` is set.
pub(super) fn least(a: f64, b: f64, nan: bool) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f64::NAN,
        (true, false) | (false, true) if nan => f64::NAN,
        (true, false) => b,
        (false, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        _ => {
            if a < b {
                a
            } else {
                b
            }
        }
    }
}

pub(super) fn greatest(a: f64, b: f64, nan: bool) -> f64 {
    -least(-a, -b, nan)
}

/// With `.xorsign.abs`: of the magnitudes, under the product of the signs.
pub(super) fn xor_signed(pick: impl Fn(f64, f64) -> f64, a: f64, b: f64) -> f64 {
    let negative = a.is_sign_negative() != b.is_sign_negative();
    let magnitude = pick(a.abs(), b.abs());
    if negative { -magnitude } else { magnitude }
}

fn selection(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    let ftz = modifiers.take("ftz");
    let nan = modifiers.take("NaN");
    let xor_sign = modifiers.take("xorsign");
    let ty = {
        if xor_sign && !modifiers.take("abs") {
            return None;
        }
        modifiers.take_type()?
    };
    let unary = matches!(name, "abs" | "neg");
    if unary && (nan || xor_sign) || ty == Type::F64 && (nan || xor_sign || ftz) {
        return None;
    }
    macro_rules! picked {
        (|$a:ident, $b:ident| $e:expr) => {
            single!(ftz, false; |a, b| {
                let ($a, $b) = (f64::from(a), f64::from(b));
                ($e) as f32
            })
        };
    }
    let run: Alu = match (ty, name, nan, xor_sign) {
        (Type::F32, "abs", ..) => single_bits(ftz, true),
        (Type::F32, "neg", ..) => single_bits(ftz, false),
        (Type::F64, "abs", ..) => alu!(|a: u64| a & !(1 << 63)),
        (Type::F64, "neg", ..) => alu!(|a: u64| a ^ 1 << 63),
        (Type::F32, "min", false, false) => picked!(|a, b| least(a, b, false)),
        (Type::F32, "min", true, false) => picked!(|a, b| least(a, b, true)),
        (Type::F32, "max", false, false) => picked!(|a, b| greatest(a, b, false)),
        (Type::F32, "max", true, false) => picked!(|a, b| greatest(a, b, true)),
        (Type::F32, "min", false, true) => picked!(|a, b| xor_signed(|a, b| least(a, b, false), a, b)),
        (Type::F32, "min", true, true) => picked!(|a, b| xor_signed(|a, b| least(a, b, true), a, b)),
        (Type::F32, "max", false, true) => picked!(|a, b| xor_signed(|a, b| greatest(a, b, false), a, b)),
        (Type::F32, "max", true, true) => picked!(|a, b| xor_signed(|a, b| greatest(a, b, true), a, b)),
        (Type::F64, "min", ..) => alu!(|a: f64, b: f64| least(a, b, false)),
        (Type::F64, "max", ..) => alu!(|a: f64, b: f64| greatest(a, b, false)),
        _ => return None,
    };
    Some(Selected::new(run, if unary { 1 } else { 2 }, ty))
}

fn single_bits(ftz: bool, absolute: bool) -> Alu {
    match (ftz, absolute) {
        (false, true) => alu!(|a: u32| a & !(1 << 31)),
        (false, false) => alu!(|a: u32| a ^ 1 << 31),
        (true, true) => alu!(|a: f32| flush(a).to_bits() & !(1 << 31)),
        (true, false) => alu!(|a: f32| flush(a).to_bits() ^ 1 << 31),
    }
}

fn test_property(modifiers: &mut Modifiers) -> Option<Selected> {
    let property = modifiers.take_first()?.to_owned();
    let ty = modifiers.take_type()?;
    macro_rules! test {
        (|$a:ident| $e:expr) => {
            for_types!(ty; [F32 => f32, F64 => f64]; T => alu!(|$a: T| $e))?
        };
    }
    let run = match property.as_str() {
        "finite" => test!(|a| a.is_finite()),
        "infinite" => test!(|a| a.is_infinite()),
        "number" => test!(|a| !a.is_nan()),
        "notanumber" => test!(|a| a.is_nan()),
        "normal" => test!(|a| a.is_normal()),
        "subnormal" => test!(|a| a.is_subnormal()),
        _ => return None,
    };
    Some(Selected::new(run, 1, ty))
}
