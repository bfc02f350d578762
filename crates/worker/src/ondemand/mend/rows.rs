//! What of a GPU's memory a program can change, row by row, and where each lies in a base.

use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CuResult};
use rekindle_device::{Device, Result, Stream};
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::image::Physical;

/// Where each row begins is a multiple of this.
const ALIGNMENT: u64 = 512;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum MemoryObject {
    Buffer {
        address: u64,
    },
    /// Memory that the program maps itself.
    Physical {
        serial: u64,
    },
    /// Of a module that is whole.
    Global {
        loaded_at: u64,
        name: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    what: MemoryObject,
    bytes: u64,
    /// In the base.
    offset: u64,
}

impl Row {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// All rows, with their addresses now, and how long a base of them is.
pub(super) fn rows(client: &Client, index: usize) -> Result<(Vec<(Row, u64)>, u64)> {
    let context = client.context(index)?;
    let mut offset = 0;
    let mut rows = Vec::new();
    let mut add = |what, address, bytes: u64| {
        rows.push((Row { what, bytes, offset }, address));
        offset = (offset + bytes).next_multiple_of(ALIGNMENT);
    };
    for (&address, buffer) in context.heap.buffers().iter().filter(|(_, buffer)| buffer.is_backed()) {
        add(MemoryObject::Buffer { address }, address, buffer.bytes);
    }
    for (&serial, physical) in client.virtual_memory.physical.iter().filter(|(_, one)| one.device == index) {
        // Where it can be copied from is found when it is.
        add(MemoryObject::Physical { serial }, 0, physical.bytes);
    }
    for (_, module) in client.modules.iter().filter(|(_, module)| module.device == index) {
        // Globals of modules in pieces are buffers.
        let Some(handle) = module.body.whole() else { continue };
        for global in context.device.globals(handle)?.into_iter().filter(|global| !global.constant) {
            let what = MemoryObject::Global { loaded_at: module.loaded_at, name: global.name };
            add(what, global.address, global.bytes);
        }
    }
    Ok((rows, offset.max(1)))
}

/// Rows of a device, and where its base lies.
pub(super) struct DeviceRows<'r, R> {
    pub device: usize,
    pub rows: &'r [R],
    pub base: u64,
}

/// Makes the bases of devices, each at its address, what their memory holds now. Nothing is under way on any. An error names the
/// device.
pub(super) fn take(
    client: &mut Client,
    parts: &[DeviceRows<'_, (Row, u64)>],
) -> std::result::Result<(), (usize, CuResult)> {
    let (mut on, rows) = (0, parts.iter().flat_map(|part| part.rows.iter().map(|(row, _)| row)));
    let taken = with_windows(client, rows, |client, windows| {
        // The devices copy side by side.
        for part in parts {
            on = part.device;
            take_on(client, part, windows)?;
        }
        parts.iter().try_for_each(|part| {
            on = part.device;
            let (device, stream) = copies(client, part.device)?;
            device.stream_synchronize(stream)
        })
    });
    taken.map_err(|code| (on, code))
}

/// Enqueues the copy of a device's memory behind what its stream of copies has. All of the memory is mapped.
pub(super) fn enqueue(client: &mut Client, part: &DeviceRows<'_, (Row, u64)>) -> Result<()> {
    let rows = part.rows.iter().map(|(row, _)| row);
    with_windows(client, rows, |client, windows| take_on(client, part, windows))
}

fn take_on(client: &mut Client, part: &DeviceRows<'_, (Row, u64)>, windows: &Physical) -> Result<()> {
    let (device, stream) = copies(client, part.device)?;
    for (row, address) in part.rows {
        let from = match &row.what {
            MemoryObject::Physical { serial } => windows.address(*serial).ok_or(CUDA_ERROR_NOT_FOUND)?,
            _ => *address,
        };
        device.copy(part.base + row.offset, from, row.bytes, stream)?;
    }
    Ok(())
}

/// Where a device, which becomes current, does what is copied for bases.
pub(super) fn copies(client: &mut Client, index: usize) -> Result<(Arc<dyn Device>, Stream)> {
    client.bind(index)?;
    let context = client.context(index)?;
    let stream = context.gpu.copies.first().copied().unwrap_or(Stream::LEGACY);
    Ok((context.device.clone(), stream))
}

/// Makes memory of devices what their bases hold, each at its address.
pub(super) fn put_back(client: &mut Client, parts: &[DeviceRows<'_, Row>]) -> Result<()> {
    let rows = parts.iter().flat_map(|part| part.rows.iter());
    with_windows(client, rows, |client, windows| {
        parts.iter().try_for_each(|part| put_back_on(client, part, windows))
    })
}

fn put_back_on(client: &mut Client, part: &DeviceRows<'_, Row>, windows: &Physical) -> Result<()> {
    client.bind(part.device)?;
    let device = &client.context(part.device)?.device;
    for Row { what, bytes, offset } in part.rows {
        let to = match what {
            MemoryObject::Buffer { address } => *address,
            MemoryObject::Physical { serial } => windows.address(*serial).ok_or(CUDA_ERROR_NOT_FOUND)?,
            MemoryObject::Global { loaded_at, name } => {
                let module = client.modules.iter().find(|(_, module)| module.loaded_at == *loaded_at);
                let (_, module) = module.ok_or(CUDA_ERROR_NOT_FOUND)?;
                let handle = module.body.whole().ok_or(CUDA_ERROR_NOT_FOUND)?;
                let (address, found) = device.global(handle, name)?;
                if found == *bytes { address } else { return Err(CUDA_ERROR_INVALID_VALUE) }
            }
        };
        device.copy(to, part.base + offset, *bytes, Stream::LEGACY)?;
    }
    device.stream_synchronize(Stream::LEGACY)
}

/// Has memory that the program maps itself be mapped somewhere meanwhile, if any of the rows is of such.
fn with_windows<'r>(
    client: &mut Client,
    mut rows: impl Iterator<Item = &'r Row>,
    body: impl FnOnce(&mut Client, &Physical) -> Result<()>,
) -> Result<()> {
    if !rows.any(|row| matches!(row.what, MemoryObject::Physical { .. })) {
        return body(client, &Physical::default());
    }
    let opened = Physical::open(client)?;
    let done = body(client, &opened);
    done.and(opened.close(client))
}
