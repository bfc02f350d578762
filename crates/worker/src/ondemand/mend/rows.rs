//! What of a GPU's memory a program can change, row by row, and where each lies in a base.

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Access, Result, Stream};
use serde::{Deserialize, Serialize};

use crate::client::Client;

/// Where each row begins is a multiple of this.
const ALIGNMENT: u64 = 512;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum What {
    /// A buffer, or memory that the program has mapped.
    Memory { address: u64 },
    /// Of a module that is whole.
    Global { loaded_at: u64, name: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    what: What,
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
    for (&address, buffer) in context.heap.buffers() {
        add(What::Memory { address }, address, buffer.bytes);
    }
    let memory = &client.virtual_memory;
    for (&serial, physical) in &memory.physical {
        let is_it = |mapping: &crate::memory::Mapping| {
            mapping.serial == serial && mapping.access == Access::ReadWrite
        };
        // What is mapped nowhere can be copied from nowhere.
        let mapped = memory.mappings.iter().find(|(_, mapping)| is_it(mapping));
        let (&address, _) = mapped.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        add(What::Memory { address }, address, physical.bytes);
    }
    for (_, module) in client.modules.iter().filter(|(_, module)| module.device == index) {
        // Globals of modules in pieces are buffers.
        let Some(handle) = module.body.whole() else { continue };
        for global in context.device.globals(handle)?.into_iter().filter(|global| !global.constant) {
            let what = What::Global { loaded_at: module.loaded_at, name: global.name };
            add(what, global.address, global.bytes);
        }
    }
    Ok((rows, offset.max(1)))
}

/// Makes the base what memory holds now. Nothing is under way on the device, whose context is current.
pub(super) fn take(client: &Client, index: usize, rows: &[(Row, u64)], base: u64) -> Result<()> {
    let context = client.context(index)?;
    let stream = context.gpu.copies.first().copied().unwrap_or(Stream::LEGACY);
    for (row, address) in rows {
        context.device.copy(base + row.offset, *address, row.bytes, stream)?;
    }
    context.device.stream_synchronize(stream)
}

/// Makes memory what the base holds.
pub(super) fn put_back(client: &Client, index: usize, rows: &[Row], base: u64) -> Result<()> {
    let device = &client.context(index)?.device;
    for Row { what, bytes, offset } in rows {
        let to = match what {
            What::Memory { address } => *address,
            What::Global { loaded_at, name } => {
                let module = client.modules.iter().find(|(_, module)| module.loaded_at == *loaded_at);
                let (_, module) = module.ok_or(CUDA_ERROR_NOT_FOUND)?;
                let handle = module.body.whole().ok_or(CUDA_ERROR_NOT_FOUND)?;
                let (address, found) = device.global(handle, name)?;
                if found == *bytes { address } else { return Err(CUDA_ERROR_INVALID_VALUE) }
            }
        };
        device.copy(to, base + offset, *bytes, Stream::LEGACY)?;
    }
    device.stream_synchronize(Stream::LEGACY)
}
