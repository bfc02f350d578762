//! One lane's bits as a value of a type.

use super::minifloat::{self, BF16};
use super::rounding::Rounding;

/// Threads in a warp.
pub(crate) const LANES: usize = 32;

/// One register of a warp: a value per lane, zero-extended to 64 bits.
pub(crate) type Lanes = [u64; LANES];

/// A type that a register can hold. `of` ignores bits beyond the type's width.
pub(crate) trait Value: Copy {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! integer_values {
    ($($t:ty as $unsigned:ty),*) => {$(
        impl Value for $t {
            #[inline(always)]
            fn of(bits: u64) -> Self {
                bits as Self
            }

            #[inline(always)]
            fn bits(self) -> u64 {
                self as $unsigned as u64
            }
        }
    )*};
}

integer_values!(u8 as u8, u16 as u16, u32 as u32, u64 as u64, i8 as u8, i16 as u16, i32 as u32, i64 as u64);

impl Value for bool {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        bits != 0
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        u64::from(self)
    }
}

impl Value for f32 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        f32::from_bits(bits as u32)
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Value for f64 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        f64::from_bits(bits)
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

/// A half-precision value, widened without loss.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Half(pub f64);

impl Value for Half {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        Self(half::f16::from_bits(bits as u16).to_f64())
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        minifloat::encode(&minifloat::F16, self.0, Rounding::Nearest)
    }
}

/// A `bf16` value, widened without loss.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct BFloat16(pub f64);

impl Value for BFloat16 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        Self(f64::from(f32::from_bits((bits as u32 & 0xffff) << 16)))
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        minifloat::encode(&BF16, self.0, Rounding::Nearest)
    }
}
