//! A sandbox's init as a program of its own: `sandbox-init sandbox-init FD`, as `rekindled` runs itself.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next().and_then(|fd| fd.parse().ok())) {
        (Some("sandbox-init"), Some(fd)) => rekindle_sandbox::init_main(fd),
        _ => {
            eprintln!(
                "usage: sandbox-init sandbox-init FD (FD: a descriptor with the set-up; the daemon runs this)"
            );
            ExitCode::FAILURE
        }
    }
}
