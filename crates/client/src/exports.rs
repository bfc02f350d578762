//! What the table of functions gives: an export for each function that is not implemented, and the address of each.

use crate::refusal::not_implemented;

/// The address of an exported function.
#[derive(Clone, Copy)]
pub struct Address(pub *const ());

// SAFETY: the address of code is only a number here.
unsafe impl Sync for Address {}

/// A function as `cuGetProcAddress` knows it.
pub struct Row {
    pub symbol: &'static str,
    pub base: &'static str,
    pub since: i32,
    pub address: Address,
    /// The variant with a default stream per thread.
    pub variant: Option<Address>,
}

fn refuse(symbol: &'static str, reason: &str) -> i32 {
    not_implemented(symbol, reason).0
}

#[allow(non_snake_case, non_upper_case_globals, reason = "the names are the driver's")]
mod generated {
    use super::{Address, Row, refuse};

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}
pub use generated::ROWS;
