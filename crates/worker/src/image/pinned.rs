//! Pinned host memory. It is saved while the program is frozen; where GPU memory is copied behind work that may write to pinned
//! memory too, it is copied there with it, and saved from that copy.

use std::path::Path;

use rekindle_protocol::worker::Phase;
use rekindle_store::{PartKind, Staging};
use serde_json::{Value, json};

use super::contents::PartLocation;
use super::error::{Error, Result};
use super::save::describe;
use super::shadow::SaveTask;
use super::timer::Timer;
use crate::client::Client;
use crate::dispatch::{Activity, Dispatcher};
use crate::memory::Pinned;

/// As much is copied to a GPU behind the program's work: it goes over the link, which takes 10 ms then.
pub(crate) const MOST_PINNED: u64 = 512 << 20;

/// Where it lies, if it may be copied behind the program's work.
pub(super) fn places(client: &Client) -> Vec<PartLocation> {
    let is_copied = client.pinned_bytes() <= MOST_PINNED;
    let pinned = client.pinned.iter().filter(|_| is_copied);
    pinned.map(location).collect()
}

/// What is to be copied behind the program's work.
pub(super) fn tasks(client: &Client, staging: &Staging) -> Result<SaveTask> {
    let task = |pinned: &Pinned| {
        let writer = staging.part(PartKind::Pinned, &pinned.name, attributes(pinned), pinned.bytes)?;
        Ok((location(pinned), writer))
    };
    client.pinned.iter().map(task).collect()
}

fn location(pinned: &Pinned) -> PartLocation {
    PartLocation { device: pinned.device, address: pinned.address, bytes: pinned.bytes }
}

fn attributes(pinned: &Pinned) -> Value {
    json!({ "address": format!("{:#x}", pinned.address), "device": pinned.device })
}

/// Writes each pinned range as a part, unless all of it is copied behind the program's work.
pub(crate) fn save_pinned(dispatcher: &Dispatcher, staging: &Path) -> Result<(Vec<Value>, Vec<Phase>)> {
    if matches!(&dispatcher.activity, Activity::Quiesced(quiesced) if quiesced.behind) {
        return Ok(Default::default());
    }
    let client = &dispatcher.client;
    let mut timer = Timer::start();
    let staging = Staging::open(staging)?;
    let mut parts = Vec::new();
    let mut bytes = 0;
    for pinned in &client.pinned {
        // SAFETY: the daemon has frozen the program, and the devices were synchronised before.
        let contents = unsafe { pinned.contents() };
        parts.push(staging.put(PartKind::Pinned, &pinned.name, attributes(pinned), contents)?);
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
