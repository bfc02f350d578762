//! Rounding modes, and arithmetic that rounds other than to nearest.

use super::minifloat::{self, F32};
use super::modifiers::Modifiers;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    /// To nearest, ties away from zero (`cvt.rna`).
    Away,
    Zero,
    Down,
    Up,
}

impl Rounding {
    /// Takes `.rn`, `.rz`, `.rm` or `.rp`.
    pub fn take(modifiers: &mut Modifiers) -> Option<Rounding> {
        modifiers.one_of(&[
            ("rn", Rounding::Nearest),
            ("rz", Rounding::Zero),
            ("rm", Rounding::Down),
            ("rp", Rounding::Up),
        ])
    }

    /// The value of MXCSR that rounds so, all exceptions masked.
    fn mxcsr(self) -> u32 {
        0x1f80
            | match self {
                Rounding::Nearest | Rounding::Away => 0,
                Rounding::Down => 1 << 13,
                Rounding::Up => 2 << 13,
                Rounding::Zero => 3 << 13,
            }
    }
}

macro_rules! binary_in_mode {
    ($name:ident, $t:ty, $instruction:literal) => {
        /// The operation of its name, rounded as asked.
        pub(crate) fn $name(rounding: Rounding, a: $t, b: $t) -> $t {
            let mode = rounding.mxcsr();
            let mut saved = 0u32;
            let mut result = a;
            // SAFETY: the control register is restored before the block ends, so that the compiler's assumption
            // of round-to-nearest holds everywhere outside it; the pointers are to live locals.
            unsafe {
                std::arch::asm!(
                    "stmxcsr [{saved}]",
                    "ldmxcsr [{mode}]",
                    concat!($instruction, " {a}, {b}"),
                    "ldmxcsr [{saved}]",
                    saved = in(reg) &raw mut saved,
                    mode = in(reg) &raw const mode,
                    a = inout(xmm_reg) result,
                    b = in(xmm_reg) b,
                    options(nostack),
                );
            }
            result
        }
    };
}

binary_in_mode!(add32, f32, "addss");
binary_in_mode!(mul32, f32, "mulss");
binary_in_mode!(div32, f32, "divss");
binary_in_mode!(sqrt32_from, f32, "sqrtss");
binary_in_mode!(add64, f64, "addsd");
binary_in_mode!(mul64, f64, "mulsd");
binary_in_mode!(div64, f64, "divsd");
binary_in_mode!(sqrt64_from, f64, "sqrtsd");

pub(crate) fn sqrt32(rounding: Rounding, a: f32) -> f32 {
    sqrt32_from(rounding, a, a)
}

pub(crate) fn sqrt64(rounding: Rounding, a: f64) -> f64 {
    sqrt64_from(rounding, a, a)
}

pub(crate) fn fma32(rounding: Rounding, a: f32, b: f32, c: f32) -> f32 {
    let exact = fma_odd(f64::from(a), f64::from(b), f64::from(c));
    if exact == 0.0 && rounding == Rounding::Down && (f64::from(a) * f64::from(b)) != 0.0 {
        // A difference that cancels is -0 when rounding down.
        return -0.0;
    }
    if exact == 0.0 {
        let product = a * b;
        return add32(rounding, if product == 0.0 { product } else { -c }, c);
    }
    f32::from_bits(minifloat::encode(&F32, exact, rounding) as u32)
}

/// The C library's fused multiply-add honours the rounding mode of the thread.
pub(crate) fn fma64(rounding: Rounding, a: f64, b: f64, c: f64) -> f64 {
    unsafe extern "C" {
        fn fesetround(mode: i32) -> i32;
        fn fma(a: f64, b: f64, c: f64) -> f64;
    }
    // The values of <fenv.h> on x86-64.
    let mode = match rounding {
        Rounding::Nearest | Rounding::Away => return a.mul_add(b, c),
        Rounding::Down => 0x400,
        Rounding::Up => 0x800,
        Rounding::Zero => 0xc00,
    };
    // SAFETY: the mode is restored before any other floating-point operation; the calls are opaque to the
    // compiler, so nothing moves between them.
    unsafe {
        fesetround(mode);
        let result = fma(a, b, c);
        fesetround(0);
        result
    }
}

/// `sum` made odd if it is inexact, so that rounding it once more to a narrower format rounds correctly.
fn odd(sum: f64, error: f64) -> f64 {
    if error == 0.0 || !sum.is_finite() || sum == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let virtual_b = sum - a;
    odd(sum, (a - (sum - virtual_b)) + (b - virtual_b))
}

/// For factors whose product is exact in `f64`.
pub(crate) fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    add_odd(a * b, c)
}
