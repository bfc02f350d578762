//! What the table of functions gives: an export for each function that is not implemented, and the address of each.

use std::sync::atomic::{AtomicBool, Ordering};

use rekindle_cuda::CUDA_ERROR_NOT_SUPPORTED;

use crate::report::report;

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

/// Names the function once on standard error.
fn refuse(number: usize, symbol: &str) -> i32 {
    static NAMED: [AtomicBool; REFUSED] = [const { AtomicBool::new(false) }; REFUSED];
    if !NAMED[number].swap(true, Ordering::Relaxed) {
        report(format_args!("{symbol} is not implemented; returned CUDA_ERROR_NOT_SUPPORTED"));
    }
    CUDA_ERROR_NOT_SUPPORTED.0
}

#[allow(non_snake_case, non_upper_case_globals, reason = "the names are the driver's")]
mod generated {
    use super::{Address, Row, refuse};

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));

    pub(super) const COUNT: usize = REFUSED;
}
use generated::COUNT as REFUSED;
pub use generated::ROWS;
