//! The driver's own checkpoint of the processes that use a GPU: locked, taken into their memory, brought back, unlocked.
//!
//! ```text
//!  daemon ── Helper ──socket──▶ rekindled driver-helper     has the driver open, makes no context
//!    Hold  ──one connection an operation──▶ Operation ──▶ the driver's five functions, a thread a process
//!                                              └─▶ Journal   one file an operation, written before each step
//! ```
//!
//! Invariants:
//! - A process is never left locked. Whatever fails or dies, its states are read back and it is brought to running:
//!   by the helper when a step fails or the daemon is gone, by the next helper when the helper is gone, by the next
//!   daemon when both are.
//! - All processes of a tree are locked before any of them is taken, and before CRIU freezes them: a thread that is
//!   frozen can't answer the driver.
//! - What is written in a journal is done afterwards, never before.

mod areas;
mod candidate;
mod client;
mod error;
mod helper;
mod huge;
mod journal;
mod library;
mod map;
mod message;
mod nccl;
mod nvml;
mod operation;
mod peers;
mod prefault;
mod states;

pub use candidate::{Candidate, candidates};
pub use client::{Helper, Hold};
pub use error::{Error, Result};
pub use helper::{HELPER_ARGUMENT, main};
pub use library::is_here;
pub use map::plan;
pub use message::{Area, CheckpointedProcesses, Gpu, Used, UuidPair};
