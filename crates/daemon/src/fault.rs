//! Faults on purpose at the daemon's steps; see [`rekindle_protocol::fault`].

use crate::error::Result;

/// To be passed at each step where a fault is of interest.
pub fn point(name: &'static str) -> Result<()> {
    Ok(rekindle_protocol::fault::point(name)?)
}

/// As [`point`], where there is nobody to tell of a failure: it can only end the daemon, or hold it.
pub fn pass(name: &'static str) {
    if let Err(error) = point(name) {
        log::warn!("{error}");
    }
}
