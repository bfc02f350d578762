//! The command line. See the library beside it.

fn main() -> std::process::ExitCode {
    rekindle_cli::main()
}
