//! Serves the functions of libraries: `rekindle-runner [OPTIONS] LIBRARY...`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rekindle::main(std::env::args_os(), None)
}
