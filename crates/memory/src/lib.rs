//! The memory daemon: objects of stores in memory of the host, once for all programs of the node, and arrays that functions
//! [hand on](exchange).
//!
//! ```text
//!   rekindled, workers ── Want ──▶ connection ─▶ objects ─▶ fetch ─▶ store (clouds, http, file)
//!                      ◀─ memory ──────┘            │          └ parallel ranges, all of one ETag
//!                                      └▶ copies    │   memory of GPUs that programs of one owner have together
//!                                                   └ least recently used ones go when room is needed
//! ```
//!
//! A process of its own, `rekindled memory`: what parses answers of servers has no part in sandboxes, credentials stay
//! here, and it may be killed at any time. Its memory goes with it then; who waits asks the next one, which `rekindled`
//! starts as soon as somebody connects, and begins anew.

mod cloud;
mod connection;
mod copies;
mod dump;
mod exchange;
mod fetch;
mod landed;
mod objects;
mod process;
mod room;
mod shared;
mod store;
mod transport;

pub use process::{ARGUMENT, main};
