//! Calls that are refused: each function is named once on standard error with its reason, and each call in the [log](crate::logs).

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, PoisonError};

use rekindle_cuda::{CUDA_ERROR_NOT_SUPPORTED, CuResult};
use rekindle_protocol::client::REFUSED;

use crate::report::report;
use crate::{logs, session};

static NAMED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// What a call returns that is not supported.
pub fn refused(function: &'static str, reason: &str) -> CuResult {
    note(function);
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
    note(function);
    told(function, &format!("{function} is not implemented; returned CUDA_ERROR_NOT_SUPPORTED: {reason}"));
    CUDA_ERROR_NOT_SUPPORTED
}

/// Has whoever starts the program the next time know of it.
fn note(function: &'static str) {
    let is_known = NAMED.lock().unwrap_or_else(PoisonError::into_inner).contains(function);
    let Ok(session) = session::get() else { return };
    if !is_known {
        let file =
            OpenOptions::new().append(true).create(true).mode(0o666).open(session.directory.join(REFUSED));
        // What cannot be noted is said on standard error all the same.
        let _ = file.and_then(|mut file| file.write_all(format!("{function}\n").as_bytes()));
    }
}

fn told(function: &'static str, what: &str) {
    if NAMED.lock().unwrap_or_else(PoisonError::into_inner).insert(function) {
        report(format_args!("{what}"));
    }
    logs::add(what);
}
