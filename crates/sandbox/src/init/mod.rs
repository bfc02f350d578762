//! The two processes that hold a sandbox: the outer one (A) and pid 1 of its namespaces (B).
//!
//! Both are single-threaded from their first instruction, so forking without exec is sound in them.

mod commands;
mod dump;
mod findings;
mod haste;
mod hold;
mod look;
mod mounts;
mod one_processor;
mod outer;
pub(crate) mod program;
mod reap;
mod restore;
mod volumes;

use std::os::fd::RawFd;

pub use dump::DUMP_LOG;
pub use mounts::{LOG_PATH, RUN_PATH};
pub use restore::RESTORE_LOG;

/// The file in the run directory with the program's pid in its namespace.
pub const PID_FILE: &str = "program.pid";
/// The file in the run directory with how the program ended.
pub const EXIT_FILE: &str = "exit";
/// The socket in the run directory that init answers on.
pub const SOCKET: &str = "init.sock";
/// What init itself has to say.
pub const INIT_LOG: &str = "init.log";
/// The argument with which a sandbox's init is run.
pub const INIT_ARGUMENT: &str = "sandbox-init";

/// Becomes a sandbox's outer process; `setup` is a descriptor that [`crate::Sandbox`] passed to this program.
///
/// To be called before the program starts any thread.
pub fn init_main(setup: RawFd) -> ! {
    outer::main(setup)
}
