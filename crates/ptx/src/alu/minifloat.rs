//! Binary floating-point formats narrower than `f64`, by their bits.

use super::rounding::Rounding;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    exponent: u32,
    mantissa: u32,
    /// Infinities and many NaNs as in IEEE 754; else the top exponent holds numbers and one NaN (`e4m3`).
    ieee: bool,
    nan: u64,
}

pub(crate) const F16: Format = Format { exponent: 5, mantissa: 10, ieee: true, nan: 0x7fff };
pub(crate) const BF16: Format = Format { exponent: 8, mantissa: 7, ieee: true, nan: 0x7fff };
pub(crate) const F32: Format = Format { exponent: 8, mantissa: 23, ieee: true, nan: 0x7fff_ffff };
/// Without the 13 low bits that `tf32` leaves zero.
pub(crate) const TF32: Format = Format { exponent: 8, mantissa: 10, ieee: true, nan: 0x3ffff };
pub(crate) const E4M3: Format = Format { exponent: 4, mantissa: 3, ieee: false, nan: 0x7f };
pub(crate) const E5M2: Format = Format { exponent: 5, mantissa: 2, ieee: true, nan: 0x7f };

impl Format {
    fn sign_bit(&self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    /// The largest finite magnitude.
    pub fn largest(&self) -> u64 {
        let infinity = ((1u64 << self.exponent) - 1) << self.mantissa;
        if self.ieee { infinity - 1 } else { self.nan - 1 }
    }

    fn smallest_exponent(&self) -> i32 {
        2 - (1 << (self.exponent - 1))
    }
}

/// `value` in the format, rounded once. What is too large becomes infinity, or what the rounding mode says.
pub(crate) fn encode(format: &Format, value: f64, rounding: Rounding) -> u64 {
    if value.is_nan() {
        return format.nan;
    }
    let negative = value.is_sign_negative();
    let sign = if negative { format.sign_bit() } else { 0 };
    let overflow = if format.ieee { format.largest() + 1 } else { format.nan };
    if value.is_infinite() {
        return sign | overflow;
    }
    let bits = value.abs().to_bits();
    if bits == 0 {
        return sign;
    }
    let stored = (bits >> 52) as i32;
    let (exponent, significand) = match stored {
        0 => (-1022, bits),
        _ => (stored - 1023, bits & ((1 << 52) - 1) | 1 << 52),
    };
    let smallest = format.smallest_exponent();
    let below = (smallest - exponent).max(0) as u32;
    // Beyond 54 places only the fact that something is left matters.
    let shift = (52 - format.mantissa + below).min(55);
    let kept = significand >> shift;
    let rest = significand & ((1 << shift) - 1);
    let half = 1u64 << (shift - 1);
    let up = match rounding {
        Rounding::Nearest => rest > half || rest == half && kept & 1 == 1,
        Rounding::Away => rest >= half,
        Rounding::Zero => false,
        Rounding::Down => negative && rest != 0,
        Rounding::Up => !negative && rest != 0,
    };
    let field = if exponent < smallest {
        kept + u64::from(up)
    } else {
        (((exponent - smallest) as u64) << format.mantissa) + kept + u64::from(up)
    };
    if field > format.largest() {
        let to_infinity = match rounding {
            Rounding::Nearest | Rounding::Away => true,
            Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        };
        return sign | if to_infinity { overflow } else { format.largest() };
    }
    sign | field
}

/// The same, with what is too large (infinities too) at the largest finite value.
pub(crate) fn encode_finite(format: &Format, value: f64, rounding: Rounding) -> u64 {
    let bits = encode(format, value, rounding);
    let magnitude = bits & (format.sign_bit() - 1);
    if !value.is_nan() && magnitude > format.largest() {
        bits & format.sign_bit() | format.largest()
    } else {
        bits
    }
}

pub(crate) fn decode(format: &Format, bits: u64) -> f64 {
    let magnitude = bits & (format.sign_bit() - 1);
    let sign = if bits & format.sign_bit() != 0 { -1.0 } else { 1.0 };
    if magnitude > format.largest() {
        let infinite = format.ieee && magnitude == format.largest() + 1;
        return if infinite { sign * f64::INFINITY } else { f64::NAN };
    }
    let field = (magnitude >> format.mantissa) as i32;
    let fraction = magnitude & ((1 << format.mantissa) - 1);
    let (significand, exponent) = match field {
        0 => (fraction, format.smallest_exponent()),
        _ => (fraction | 1 << format.mantissa, field - 1 + format.smallest_exponent()),
    };
    sign * significand as f64 * 2f64.powi(exponent - format.mantissa as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_a_round_trip() {
        for bits in 0..=0xffffu64 {
            let value = decode(&F16, bits);
            let library = half::f16::from_bits(bits as u16).to_f64();
            assert!(value == library || value.is_nan() && library.is_nan(), "{bits:#x}");
            if !value.is_nan() {
                assert_eq!(encode(&F16, value, Rounding::Nearest), bits);
            }
        }
    }

    #[test]
    fn f32_agrees_with_the_hardware() {
        for i in 0..200_000u64 {
            let value = f64::from_bits(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1).abs();
            for value in [value, (value.to_bits() as f64).sqrt() * 1e-19, value * 1e-300] {
                if value.is_nan() {
                    continue;
                }
                let expected = u64::from((value as f32).to_bits());
                assert_eq!(encode(&F32, value, Rounding::Nearest), expected, "{value:e}");
            }
        }
    }

    #[test]
    fn e4m3_has_no_infinity() {
        assert_eq!(decode(&E4M3, 0x7e), 448.0);
        assert!(decode(&E4M3, 0x7f).is_nan());
        assert_eq!(encode_finite(&E4M3, 1e9, Rounding::Nearest), 0x7e);
        assert_eq!(encode_finite(&E5M2, f64::NEG_INFINITY, Rounding::Nearest), 0xfb);
        assert_eq!(encode(&E4M3, 0.001953125, Rounding::Nearest), 1);
    }
}
