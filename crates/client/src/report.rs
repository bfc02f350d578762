//! One-line messages on the program's standard error.

use std::fmt::Arguments;

/// Writes `rekindle: MESSAGE` in one piece; a program without standard error loses it.
pub fn report(message: Arguments<'_>) {
    let line = format!("rekindle: {message}\n");
    // SAFETY: the line's bytes are valid for the length given.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
