//! Calls that are refused: each function is named once on standard error, with its reason.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use rekindle_cuda::{CUDA_ERROR_NOT_SUPPORTED, CuResult};

use crate::report::report;

static NAMED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// What such a call returns.
pub fn refused(function: &'static str, reason: &str) -> CuResult {
    if NAMED.lock().unwrap_or_else(PoisonError::into_inner).insert(function) {
        report(format_args!("{function} returned CUDA_ERROR_NOT_SUPPORTED: {reason}"));
    }
    CUDA_ERROR_NOT_SUPPORTED
}
