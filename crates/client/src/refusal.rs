//! Calls that are refused: each function is named once on standard error with its reason, and each call in the [log](crate::logs).

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use rekindle_cuda::{CUDA_ERROR_NOT_SUPPORTED, CuResult};

use crate::logs;
use crate::report::report;

static NAMED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// What a call returns that is not supported.
pub fn refused(function: &'static str, reason: &str) -> CuResult {
    rejected(function, CUDA_ERROR_NOT_SUPPORTED, reason)
}

/// What a call returns that cannot be done with what it was given.
pub fn rejected(function: &'static str, code: CuResult, reason: &str) -> CuResult {
    let what = format!("{function} returned {}: {reason}", code.name().unwrap_or("an error"));
    told(function, &what);
    code
}

/// What a function returns that is not there.
pub fn not_implemented(function: &'static str, reason: &str) -> CuResult {
    told(function, &format!("{function} is not implemented; returned CUDA_ERROR_NOT_SUPPORTED: {reason}"));
    CUDA_ERROR_NOT_SUPPORTED
}

fn told(function: &'static str, what: &str) {
    if NAMED.lock().unwrap_or_else(PoisonError::into_inner).insert(function) {
        report(format_args!("{what}"));
    }
    logs::add(what);
}
