//! Each instruction against plain Rust, on random and on awkward values.

// Formulas read better as in the manual.
#![allow(clippy::precedence, clippy::neg_cmp_op_on_partial_ord, clippy::needless_range_loop)]

#[path = "../common/mod.rs"]
mod common;

mod conversions;
mod floats;
mod integers;
mod trial;
