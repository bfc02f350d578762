//! The resident runner: one process with one GPU context, in which an instance of a function is a thread and a stream.
//!
//! ```text
//!  gateway ─▶ connection: a thread, reads a request ─▶ pool ─┬─ an instance that waits
//!                  ▲                                         └─ a new one: thread, stream, enter
//!                  └── or 504, when its time is over              │ call, and the answer on the connection
//!                                                                 └─▶ pool, until it was idle for long enough
//! ```
//!
//! The program `rekindle-runner` loads libraries; a program of one's own has its functions in it, and calls [`main`], or
//! from C `rekindle_run`.

mod api;
mod arguments;
mod connection;
mod context;
mod data;
mod http;
mod instance;
mod library;
mod pending;
mod pool;
mod reply;
mod report;
mod server;
mod trace;
mod tree;

use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;

use clap::Parser;
use rekindle_function::abi;

use crate::arguments::Arguments;

/// Why a runner does not come up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path} cannot be loaded: {why}; give a shared library that has functions of Rekindle's")]
    Load { path: String, why: String },
    #[error("{path} {what}; {remedy}")]
    Library { path: String, what: String, remedy: &'static str },
    #[error("{function} of {library} did not get ready: {error}")]
    Setup { function: String, library: String, error: rekindle_function::Error },
    #[error("the GPU cannot be used: {0}")]
    Gpu(rekindle_function::Error),
    #[error("nobody can come to {address}: {source}; give another address (--listen)")]
    Listen { address: String, source: std::io::Error },
    #[error("{what}: {source}")]
    System { what: String, source: std::io::Error },
}

/// Serves functions until SIGTERM: of the libraries that are named, and of the program itself, if `own` has some.
pub fn main(words: impl IntoIterator<Item = OsString>, own: Option<&'static abi::Library>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help comes this way, too. What cannot be printed cannot be said otherwise.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match server::serve(&arguments, own) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rekindle-runner: {error}");
            report::tell(arguments.report.as_deref(), Err(&error));
            ExitCode::FAILURE
        }
    }
}

/// [`main`] for programs in C that have their functions in themselves.
///
/// # Safety
///
/// `words` are `count` texts, as those of C's `main`; `own` is null, or a table that stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rekindle_run(
    count: c_int,
    words: *const *const c_char,
    own: *const abi::Library,
) -> c_int {
    let word = |index| {
        // SAFETY: there are so many texts, each of which ends with a zero.
        let word = unsafe { CStr::from_ptr(*words.add(index)) };
        OsString::from_vec(word.to_bytes().to_vec())
    };
    let words: Vec<OsString> = (0..usize::try_from(count).unwrap_or(0)).map(word).collect();
    // SAFETY: as is promised.
    let own = unsafe { own.as_ref() };
    c_int::from(main(words, own) != ExitCode::SUCCESS)
}
