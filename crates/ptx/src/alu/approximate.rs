//! Reciprocals, roots and transcendental functions. The approximate ones are more exact than documented.

use super::float::{post, pre};
use super::modifiers::Modifiers;
use super::rounding::{self, Rounding};
use super::{Alu, Selected};
use crate::types::Type;

/// Instantiates an expression over `f32` with and without `.ftz`.
macro_rules! single {
    ($ftz:expr; |$a:ident| $e:expr) => {
        if $ftz {
            alu!(|$a: f32| {
                let $a = pre::<true>($a);
                post::<true, false>($e)
            })
        } else {
            alu!(|$a: f32| post::<false, false>($e))
        }
    };
}

pub(super) fn select(name: &str, modifiers: &mut Modifiers) -> Option<Selected> {
    let approximate = modifiers.take("approx");
    let rounding = Rounding::take(modifiers);
    let ftz = modifiers.take("ftz");
    let ty = modifiers.take_type()?;
    let run: Alu = match (name, ty, approximate, rounding) {
        ("rcp", Type::F32, true, None) => single!(ftz; |a| 1.0 / a),
        ("sqrt", Type::F32, true, None) => single!(ftz; |a| a.sqrt()),
        ("rsqrt", Type::F32, true, None) => single!(ftz; |a| (1.0 / f64::from(a).sqrt()) as f32),
        ("sin", Type::F32, true, None) => single!(ftz; |a| a.sin()),
        ("cos", Type::F32, true, None) => single!(ftz; |a| a.cos()),
        ("lg2", Type::F32, true, None) => single!(ftz; |a| a.log2()),
        ("ex2", Type::F32, true, None) => single!(ftz; |a| a.exp2()),
        ("tanh", Type::F32, true, None) => single!(ftz; |a| a.tanh()),
        ("rcp", Type::F32, false, Some(rounding)) => {
            by_mode!(rounding; MODE => single!(ftz; |a| rounding::div32(MODE, 1.0, a)))
        }
        ("sqrt", Type::F32, false, Some(rounding)) => {
            by_mode!(rounding; MODE => single!(ftz; |a| rounding::sqrt32(MODE, a)))
        }
        ("rcp", Type::F64, false, Some(rounding)) if !ftz => {
            by_mode!(rounding; MODE => alu!(|a: f64| rounding::div64(MODE, 1.0, a)))
        }
        ("sqrt", Type::F64, false, Some(rounding)) if !ftz => {
            by_mode!(rounding; MODE => alu!(|a: f64| rounding::sqrt64(MODE, a)))
        }
        // The low 32 bits of these results are documented to be zero.
        ("rcp", Type::F64, true, None) if ftz => alu!(|a: f64| high_word(1.0 / high_word(a))),
        ("rsqrt", Type::F64, true, None) if ftz => alu!(|a: f64| high_word(1.0 / high_word(a).sqrt())),
        ("rsqrt", Type::F64, true, None) => alu!(|a: f64| 1.0 / a.sqrt()),
        _ => return None,
    };
    Some(Selected::new(run, 1, ty))
}

fn high_word(value: f64) -> f64 {
    let value = if value.is_subnormal() { 0.0f64.copysign(value) } else { value };
    f64::from_bits(value.to_bits() & !0xffff_ffff)
}
