//! Faults on purpose at the daemon's steps; see [`rekindle_protocol::fault`].

use crate::error::Result;

/// To be passed at each step where a fault is of interest.
pub fn point(name: &'static str) -> Result<()> {
    Ok(rekindle_protocol::fault::point(name)?)
}
