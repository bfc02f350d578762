//! Contexts that several clients share.
//!
//! ```text
//!   daemon ──socket──▶ Host: Admit ─┬─▶ client: control, dispatch ─ ClientDevice ─┐
//!                                   └─▶ client: control, dispatch ─ ClientDevice ─┴▶ one context a device
//! ```
//!
//! Each client has a dispatch thread and a socket of its own, and beside that what it would have in a worker of its own:
//! only its device is a [view](ClientDevice) of one that others use too. Their addresses differ by their slices
//! ([`rekindle_device::Slice`]).

mod client_device;
mod common;
mod division;
mod fair_queue;
mod health;
mod host;
mod lane;
mod lanes;
mod link;
mod memory_pool;
mod order;
mod overtake;
mod owned;
mod piece;
mod piece_cache;
mod queues;
mod settings;
#[cfg(test)]
mod tests;
mod work_sign;

pub(crate) use client_device::{ClientDevice, Recycling};
pub(crate) use common::Common;
pub(crate) use division::{DivisionMember, PortionError, Wish};
pub(crate) use health::Health;
pub use host::serve;
pub(crate) use piece::Direction;
pub(crate) use settings::Settings as LinkSettings;
