//! Memory that is put in place right after a restore, before the program comes to it: pages that programs restored from
//! the same image have touched first, as a file in the run directory names them. Nothing depends on it: where a page
//! cannot be had now, it comes when it is touched.

use std::path::Path;

use rekindle_protocol::client::{FIRST_PAGES, TouchedRange};

use crate::pages::populate;

/// Has the kernel map them. The program runs meanwhile.
pub fn take(directory: &Path) {
    let Ok(bytes) = std::fs::read(directory.join(FIRST_PAGES)) else { return };
    let (written, read): (Vec<_>, Vec<_>) = TouchedRange::decode(&bytes).partition(|run| run.written);
    // A page that is written to costs a copy: those are what a program waits for most.
    for run in written.into_iter().chain(read) {
        populate(run.start as usize, run.bytes as usize, run.written);
    }
}
