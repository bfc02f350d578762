//! `cvt` between scalar types.

use super::float::{flush, saturate64};
use super::minifloat::{self, BF16, F16, F32, TF32};
use super::modifiers::Modifiers;
use super::rounding::Rounding;
use super::value::{BFloat16, Half};
use super::{Alu, Selected, Value};
use crate::types::Type;

/// `f32` with subnormal sources read as zero.
#[derive(Clone, Copy)]
struct Flushed(f32);

impl Value for Flushed {
    fn of(bits: u64) -> Self {
        Self(flush(f32::of(bits)))
    }

    fn bits(self) -> u64 {
        flush(self.0).bits()
    }
}

trait FloatFormat: Value {
    fn real(self) -> f64;
}

macro_rules! reals {
    ($($t:ty => |$x:ident| $e:expr),*) => {$(
        impl FloatFormat for $t {
            fn real(self) -> f64 {
                let $x = self;
                $e
            }
        }
    )*};
}

reals!(f32 => |x| f64::from(x), f64 => |x| x, Half => |x| x.0, BFloat16 => |x| x.0, Flushed => |x| f64::from(x.0));

macro_rules! for_reals {
    ($ty:expr, $ftz:expr; $T:ident => $e:expr) => {
        match ($ty, $ftz) {
            (Type::F32, true) => {
                type $T = Flushed;
                $e
            }
            (Type::F32, false) => {
                type $T = f32;
                $e
            }
            (Type::F64, _) => {
                type $T = f64;
                $e
            }
            (Type::F16, _) => {
                type $T = Half;
                $e
            }
            (Type::Bf16, _) => {
                type $T = BFloat16;
                $e
            }
            _ => return None,
        }
    };
}

fn to_integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Away => value.round(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

pub(super) fn select(modifiers: &mut Modifiers) -> Option<Selected> {
    let chosen = scalar(modifiers);
    if chosen.is_none() {
        modifiers.reset();
    }
    chosen
}

fn scalar(modifiers: &mut Modifiers) -> Option<Selected> {
    let integral = modifiers.one_of(&[
        ("rni", Rounding::Nearest),
        ("rzi", Rounding::Zero),
        ("rmi", Rounding::Down),
        ("rpi", Rounding::Up),
    ]);
    let rounding = Rounding::take(modifiers).or_else(|| modifiers.take("rna").then_some(Rounding::Away));
    let ftz = modifiers.take("ftz");
    let sat = modifiers.take("sat");
    let relu = modifiers.take("relu");
    let finite = modifiers.take("satfinite");
    let to = modifiers.take_type()?;
    let from = modifiers.take_type()?;
    // A second source follows only in packed conversions.
    if modifiers.peek_type().is_some() {
        return None;
    }
    let is_integer =
        |ty: Type| ty.unsigned().is_some() && !matches!(ty, Type::B8 | Type::B16 | Type::B32 | Type::B64);
    let run: Alu = match (to, from) {
        (Type::Tf32, Type::F32) => to_tf32(rounding?, relu, finite)?,
        _ if finite => return None,
        (to, from) if is_integer(to) && is_integer(from) => {
            if integral.or(rounding).is_some() || ftz || relu {
                return None;
            }
            integer_to_integer(to, from, sat)?
        }
        (to, from) if is_integer(to) && from.is_float() => {
            float_to_integer(to, from, integral.or(rounding)?, ftz)?
        }
        (to, from) if to.is_float() && is_integer(from) => integer_to_float(to, from, rounding?, sat)?,
        (to, from) if to.is_float() && from.is_float() => {
            let mode = match integral {
                Some(mode) => Mode::Integral(mode),
                None => Mode::Round(rounding.unwrap_or(Rounding::Nearest)),
            };
            float_to_float(to, from, mode, ftz, sat, relu)?
        }
        _ => return None,
    };
    let sign_extend = to.is_signed().then(|| to.bits());
    Some(Selected { sign_extend, ..Selected::new(run, 1, from) })
}

fn to_tf32(rounding: Rounding, relu: bool, finite: bool) -> Option<Alu> {
    Some(match (relu, finite) {
        (false, false) => by_mode!(rounding; MODE => {
            alu!(|a: f32| minifloat::encode(&TF32, f64::from(a), MODE) << 13)
        }),
        (true, false) => by_mode!(rounding; MODE => {
            alu!(|a: f32| minifloat::encode(&TF32, positive(f64::from(a)), MODE) << 13)
        }),
        (false, true) => by_mode!(rounding; MODE => {
            alu!(|a: f32| minifloat::encode_finite(&TF32, f64::from(a), MODE) << 13)
        }),
        (true, true) => return None,
    })
}

/// Negative numbers as zero; NaN stays.
pub(super) fn positive(value: f64) -> f64 {
    if value <= 0.0 { 0.0 } else { value }
}

macro_rules! for_integer_types {
    ($ty:expr; $T:ident => $body:expr) => {
        for_types!($ty; [
            U8 => u8, U16 => u16, U32 => u32, U64 => u64, S8 => i8, S16 => i16, S32 => i32, S64 => i64
        ]; $T => $body)
    };
}

fn integer_to_integer(to: Type, from: Type, sat: bool) -> Option<Alu> {
    for_integer_types!(from; F => {
        for_integer_types!(to; T => {
            if sat {
                alu!(|a: F| i128::from(a).clamp(i128::from(T::MIN), i128::from(T::MAX)) as T)
            } else {
                alu!(|a: F| a as T)
            }
        })?
    })
}

/// A conversion out of range gives the nearest value; NaN gives zero, or for 64 bits the top bit alone.
fn float_to_integer(to: Type, from: Type, rounding: Rounding, ftz: bool) -> Option<Alu> {
    for_integer_types!(to; T => {
        let not_a_number = T::BITS == 64;
        for_reals!(from, ftz; F => by_mode!(rounding; MODE => {
            if not_a_number {
                alu!(|a: F| {
                    let value = a.real();
                    if value.is_nan() { (1u64 << 63) as T } else { to_integral(value, MODE) as T }
                })
            } else {
                alu!(|a: F| to_integral(a.real(), MODE) as T)
            }
        }))
    })
}

/// 64-bit integers do not fit `f64`: the last bits are folded into one that keeps later rounding right.
fn sticky(value: i128) -> f64 {
    let magnitude = value.unsigned_abs();
    let excess = (128 - magnitude.leading_zeros()).saturating_sub(53);
    let lost = magnitude & ((1 << excess) - 1) != 0;
    let kept = ((magnitude >> excess) | u128::from(lost)) << excess;
    if value < 0 { -(kept as f64) } else { kept as f64 }
}

/// An integer rounded to 53 bits as asked.
fn integer_as_f64(value: i128, rounding: Rounding) -> f64 {
    let nearest = value as f64;
    let error = value - nearest as i128;
    let toward_negative = match rounding {
        Rounding::Nearest | Rounding::Away => return nearest,
        Rounding::Zero => value > 0,
        Rounding::Down => true,
        Rounding::Up => false,
    };
    if toward_negative && error < 0 {
        nearest.next_down()
    } else if !toward_negative && error > 0 {
        nearest.next_up()
    } else {
        nearest
    }
}

fn integer_to_float(to: Type, from: Type, rounding: Rounding, sat: bool) -> Option<Alu> {
    if sat {
        return for_integer_types!(from; F => match to {
            Type::F16 => alu!(|a: F| Half(saturate64(a as f64))),
            Type::Bf16 => alu!(|a: F| BFloat16(saturate64(a as f64))),
            Type::F32 => alu!(|a: F| saturate64(a as f64) as f32),
            _ => alu!(|a: F| saturate64(a as f64)),
        });
    }
    for_integer_types!(from; F => match (to, rounding) {
        (Type::F32, Rounding::Nearest) => alu!(|a: F| a as f32),
        (Type::F64, Rounding::Nearest) => alu!(|a: F| a as f64),
        (Type::F32, _) => by_mode!(rounding; MODE => {
            alu!(|a: F| minifloat::encode(&F32, sticky(i128::from(a)), MODE))
        }),
        (Type::F64, _) => by_mode!(rounding; MODE => alu!(|a: F| integer_as_f64(i128::from(a), MODE))),
        (Type::F16, _) => by_mode!(rounding; MODE => {
            alu!(|a: F| minifloat::encode(&F16, sticky(i128::from(a)), MODE))
        }),
        _ => by_mode!(rounding; MODE => alu!(|a: F| minifloat::encode(&BF16, sticky(i128::from(a)), MODE))),
    })
}

enum Mode {
    /// To a whole number.
    Integral(Rounding),
    Round(Rounding),
}

fn float_to_float(to: Type, from: Type, mode: Mode, ftz: bool, sat: bool, relu: bool) -> Option<Alu> {
    let saturated = u8::from(sat) + 2 * u8::from(relu);
    macro_rules! into {
        ($F:ident, $mode:ident, |$a:ident| $e:expr) => {
            match (to, ftz, saturated) {
                (Type::F32, true, 0) => alu!(|$a: $F| Flushed(f32::of(minifloat::encode(&F32, $e, $mode)))),
                (Type::F32, false, 0) => alu!(|$a: $F| minifloat::encode(&F32, $e, $mode)),
                (Type::F32, _, 1) => alu!(|$a: $F| minifloat::encode(&F32, saturate64($e), $mode)),
                (Type::F64, _, 0) => alu!(|$a: $F| $e),
                (Type::F64, _, 1) => alu!(|$a: $F| saturate64($e)),
                (Type::F16, _, 0) => alu!(|$a: $F| minifloat::encode(&F16, $e, $mode)),
                (Type::F16, _, 1) => alu!(|$a: $F| minifloat::encode(&F16, saturate64($e), $mode)),
                (Type::F16, _, 2) => alu!(|$a: $F| minifloat::encode(&F16, positive($e), $mode)),
                (Type::Bf16, _, 0) => alu!(|$a: $F| minifloat::encode(&BF16, $e, $mode)),
                (Type::Bf16, _, 2) => alu!(|$a: $F| minifloat::encode(&BF16, positive($e), $mode)),
                _ => return None,
            }
        };
    }
    Some(match mode {
        Mode::Integral(rounding) => for_reals!(from, ftz; F => by_mode!(rounding; MODE => {
            into!(F, MODE, |a| to_integral(a.real(), MODE))
        })),
        Mode::Round(rounding) => {
            for_reals!(from, ftz; F => by_mode!(rounding; MODE => into!(F, MODE, |a| a.real())))
        }
    })
}
