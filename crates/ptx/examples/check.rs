//! Says of PTX files whether the emulated GPU runs them: `cargo run -p rekindle-ptx --example check FILE...`

use std::process::ExitCode;

use rekindle_ptx::Module;

fn main() -> ExitCode {
    let mut refused = 0;
    for path in std::env::args().skip(1) {
        let checked = std::fs::read_to_string(&path)
            .map_err(|error| error.to_string())
            .and_then(|source| Module::parse(&source).map_err(|error| error.to_string()));
        match checked {
            Ok(module) => {
                println!("{path}: {} kernels, {} variables", module.entries().len(), module.globals().len())
            }
            Err(error) => {
                refused += 1;
                println!("{path}: {error}");
            }
        }
    }
    if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
