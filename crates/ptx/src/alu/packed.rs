//! Half-precision operations on single values' bits, for atomics.

use super::float::{greatest, least};
use super::rounding::add_odd;
use super::value::{BFloat16, Half, Value};

pub(crate) fn add_half(a: u64, b: u64) -> u64 {
    Half(add_odd(Half::of(a).0, Half::of(b).0)).bits()
}

pub(crate) fn add_brain(a: u64, b: u64) -> u64 {
    BFloat16(add_odd(BFloat16::of(a).0, BFloat16::of(b).0)).bits()
}

pub(crate) fn min_half(a: u64, b: u64) -> u64 {
    Half(least(Half::of(a).0, Half::of(b).0, false)).bits()
}

pub(crate) fn max_half(a: u64, b: u64) -> u64 {
    Half(greatest(Half::of(a).0, Half::of(b).0, false)).bits()
}

/// Applies an operation to both halves.
pub(crate) fn pair(a: u64, b: u64, one: fn(u64, u64) -> u64) -> u64 {
    one(a & 0xffff, b & 0xffff) | one(a >> 16 & 0xffff, b >> 16 & 0xffff) << 16
}
