//! Pinned host memory, saved while the program is frozen.

use std::path::Path;

use rekindle_protocol::worker::Phase;
use rekindle_store::{PartKind, Staging};
use serde_json::{Value, json};

use super::error::{Error, Result};
use super::save::describe;
use super::timer::Timer;
use crate::client::Client;

/// Writes each pinned range as a part.
pub(crate) fn save_pinned(client: &Client, staging: &Path) -> Result<(Vec<Value>, Vec<Phase>)> {
    let mut timer = Timer::start();
    let staging = Staging::open(staging)?;
    let mut parts = Vec::new();
    let mut bytes = 0;
    for pinned in &client.pinned {
        let attributes = json!({ "address": format!("{:#x}", pinned.address), "device": pinned.device });
        // SAFETY: the daemon has frozen the program, and the devices were synchronised before.
        let contents = unsafe { pinned.contents() };
        parts.push(staging.put(PartKind::Pinned, &pinned.name, attributes, contents)?);
        bytes += pinned.bytes;
    }
    timer.lap("pinned memory", bytes);
    let parts = parts.iter().map(describe).collect::<Result<_>>()?;
    Ok((parts, timer.phases()))
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Error {
        Error::State(error.to_string())
    }
}
