//! Declared data: an image has its contents, as of any buffer, and says of which version of which object they are. A restored
//! program has them in memory that others have too, if somebody has that version on the GPU, and from the image otherwise.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rekindle_protocol::data::{Expected, Version};
use rekindle_store::{Image, Part, PartKind, Staging};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::LeftMemory;
use super::error::{Error, Result};
use super::state::buffer_part;
use crate::client::Client;
use crate::data::{self, Declared, Joined, Written};

/// The name of the part of kind `worker-state` that it stands in, as JSON; none if there is no such data.
const PART: &str = "declared-data";
const MOST_BYTES: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    device: usize,
    address: u64,
    bytes: u64,
    url: String,
    version: Version,
    /// What a dump replaces, of what the program writes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    write: Option<Expected>,
}

pub(super) fn save(client: &Client, staging: &Staging) -> Result<Option<Part>> {
    let row = |(address, declared): (u64, &Declared)| Row {
        device: declared.device,
        address,
        bytes: declared.bytes,
        url: declared.url.clone(),
        version: declared.version.clone(),
        write: None,
    };
    let written = |(address, written): (u64, &Written)| Row {
        device: written.device,
        address,
        bytes: written.bytes,
        url: written.url.clone(),
        version: Version::default(),
        write: Some(written.expected.clone()),
    };
    let rows = client.data.declared().map(row).chain(client.data.written().map(written));
    let rows: Vec<Row> = rows.collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let text = serde_json::to_vec(&rows).map_err(|error| Error::State(error.to_string()))?;
    Ok(Some(staging.put(PartKind::WorkerState, PART, Value::Null, &text)?))
}

/// What is there already, by the names of parts: memory, and the bytes that the program knows of it.
pub(super) type PresentMemory = HashMap<String, (OwnedFd, u64)>;

/// Asks for what the image has, in an order that is everybody's, so that two who restore never wait for each other. Each
/// buffer's bytes are by the names of parts.
pub(super) fn join(
    client: &mut Client,
    image: &Image,
    buffers: &HashMap<String, u64>,
    left: &LeftMemory,
) -> Result<PresentMemory> {
    let mut rows = read(image)?;
    rows.sort_by(|one, other| (&one.url, &one.version.tag).cmp(&(&other.url, &other.version.tag)));
    let mut there = PresentMemory::new();
    for Row { device, address, bytes, url, version, write } in rows {
        if let Some(expected) = write {
            client.data.note_written(address, Written::new(device, &url, bytes, expected));
            continue;
        }
        let part = buffer_part(address);
        let Some(&room) = buffers.get(&part) else {
            return Err(Error::State(format!("it has declared data at {address:#x}, where no buffer is")));
        };
        let copy = |memory: &OwnedFd| memory.try_clone();
        let failed = |source| Error::Io { action: "copy", path: "a descriptor".to_string(), source };
        let own = left.get(&part).map(copy).transpose().map_err(failed)?;
        let declared = Declared::new(device, &url, version.clone(), bytes);
        let joined = data::join(client.sharer(device), &url, &version, own.map(|memory| (memory, room)));
        let declared = match joined {
            Joined::There(connection, memory, found) if found == room => {
                there.insert(part, (copy(&memory).map_err(failed)?, bytes));
                declared.held(connection, memory)
            }
            Joined::Load(Some(connection)) => declared.filling(connection),
            Joined::There(..) | Joined::Load(None) => declared,
        };
        client.data.note_declared(address, declared);
    }
    Ok(there)
}

fn read(image: &Image) -> Result<Vec<Row>> {
    let Some(part) = image.part(PartKind::WorkerState, PART) else { return Ok(Vec::new()) };
    if part.bytes > MOST_BYTES {
        return Err(Error::State(format!(
            "what it says of declared data claims to have {} bytes",
            part.bytes
        )));
    }
    let mut text = vec![0; part.bytes as usize];
    image.read_part(part, 0, &mut text)?;
    serde_json::from_slice(&text).map_err(|error| Error::State(format!("declared data: {error}")))
}
