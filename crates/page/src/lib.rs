//! The daemon's page: what a browser shows of services, instances, GPUs, sandboxes and images.
//!
//! ```text
//!   browser ── GET / ─────────▶ files, which are part of this library
//!           ── GET /state.json ─▶ collected by the daemon, once for all who ask within a moment
//!   scraper ── GET /metrics ────▶ as that
//! ```
//!
//! It can only be read. A thread of its own serves it, so that nobody who looks holds up a request to a service.

mod files;
mod hosts;
mod server;
mod state;

pub use hosts::Hosts;
pub use server::{Documents, serve};
pub use state::Collect;
