//! The machine that runs programs: a warp of 32 threads at a time.
//!
//! ```text
//! Grid (shared by threads) ─▶ Cluster (one thread at a time) ─▶ Block ─▶ Warp ─▶ Path
//! ```
//!
//! A path is a set of a warp's lanes that are at the same instruction of the same call chain. Divergence splits
//! paths, equal places merge them. Everything that a cluster needs to go on is in it, so it can be set aside
//! whenever it spins, waits or has had its share of time, and every started block progresses.

pub(crate) mod access;
mod atomic;
mod barrier;
mod block;
mod builtin;
mod call;
mod collective;
mod copy;
pub(crate) mod fragment;
pub(crate) mod grid;
pub(crate) mod matrix;
mod mbarrier;
mod memory;
mod printf;
mod schedule;
mod special;
mod step;
mod tensor;
pub(crate) mod texture;
mod warp;
pub(crate) mod windows;
