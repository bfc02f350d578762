//! Shared memory between a program's client and its worker.
//!
//! Each thread of the program that calls CUDA owns one [`Ring`]: it produces requests, the worker consumes them. A ring
//! file holds, in this order:
//!
//! ```text
//!   header   one page: positions, reply words, staging words
//!   reply    64 KiB: the answer to the request that the thread waits for
//!   data     512 KiB: request records, 16-byte aligned, never wrapping inside a record
//!   staging  16 MiB: bytes on their way between pageable memory and the GPU
//! ```
//!
//! One [`Board`] is shared by all rings of a process. Its ticket counter numbers the requests of all threads, and the
//! worker consumes in that order ([`Merge`]): what one thread enqueued before it woke another thread is issued before
//! what the other enqueues then. Nobody makes a system call while both sides are busy: a side that finds nothing to do
//! spins for a while, says that it sleeps, looks once more, then waits on a futex.

mod atomic;
mod board;
mod futex;
mod line;
mod merge;
mod queue;
#[cfg(not(loom))]
mod shared;
mod signal;
pub mod spin;
#[cfg(not(loom))]
mod staging;

pub use board::{Board, Liveness};
pub use line::Line;
pub use merge::Merge;
pub use queue::{Consumer, Corrupt, Header, MAX_PAYLOAD, Producer, Record};
#[cfg(not(loom))]
pub use shared::{BoardMapping, REPLY_BYTES, RING_BYTES, Ring, STAGING_BYTES, SharedError};
pub use signal::{Signal, Wait};
pub use spin::Spin;
#[cfg(not(loom))]
pub use staging::{Staging, Transfer};
