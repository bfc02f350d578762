//! Memory that the program cannot reach before its contents are there.
//!
//! ```text
//!   program's addresses:  reserved ─────────────── mapped when whole ──▶
//!   window:               mapped ── filled ─────── unmapped in the end
//! ```
//!
//! A kernel that comes to such memory too early faults; it never reads what is not there yet, nor is what it writes
//! overwritten. Shared memory, whose contents are a cache's, is mapped read-only from the start and never filled.

use std::sync::Arc;

use rekindle_device::{Access, Device, Memory};

use super::error::{Result, device};
use crate::client::Client;
use crate::dispatch::Remote;

/// One handle.
pub(super) struct Hidden {
    /// The part with its contents.
    pub part: String,
    pub device: usize,
    /// None where it is shared.
    pub memory: Option<Memory>,
    pub bytes: u64,
    /// Where it is mapped while it is filled.
    pub window: u64,
    /// Where the program has it.
    pub mappings: Vec<(u64, Access)>,
}

impl Hidden {
    pub(super) fn new(part: String, device: usize, memory: Option<Memory>, bytes: u64) -> Hidden {
        Hidden { part, device, memory, bytes, window: 0, mappings: Vec::new() }
    }

    /// Maps it where the program has it.
    pub(super) fn show(&self, gpu: &dyn Device) -> Result<()> {
        let Some(memory) = self.memory else { return Ok(()) };
        let map = |&(address, access): &(u64, Access)| {
            gpu.map(address, self.bytes, memory)?;
            match access {
                Access::None => Ok(()),
                _ => gpu.protect(address, self.bytes, access),
            }
        };
        gpu.bind()
            .and_then(|()| self.mappings.iter().try_for_each(map))
            .map_err(device("map a loaded buffer"))
    }
}

/// The windows of one device, in addresses of its heap.
pub(super) struct Windows {
    index: usize,
    device: Arc<dyn Device>,
    start: u64,
    bytes: u64,
    handles: Vec<(u64, u64)>,
}

/// Gives each handle a window.
pub(super) fn open_windows(client: &mut Client, hidden: &mut [Hidden]) -> Result<Vec<Windows>> {
    let mut windows = Vec::new();
    for index in client.open_devices() {
        let bytes: u64 = hidden
            .iter()
            .filter(|one| one.device == index && one.memory.is_some())
            .map(|one| one.bytes)
            .sum();
        if bytes == 0 {
            continue;
        }
        client.bind(index).map_err(device("be used"))?;
        let heap = client.heap(index).map_err(device("be used"))?;
        let granularity = heap.granularity();
        let start = heap.take_addresses(bytes, granularity, 0);
        let start = start.map_err(device("reserve addresses to load buffers through"))?;
        let gpu = client.context(index).map_err(device("be used"))?.device.clone();
        let mut opened = Windows { index, device: gpu.clone(), start, bytes, handles: Vec::new() };
        let mut at = start;
        for one in hidden.iter_mut().filter(|one| one.device == index) {
            let Some(memory) = one.memory else { continue };
            gpu.map(at, one.bytes, memory).map_err(device("map a buffer to load it"))?;
            opened.handles.push((at, one.bytes));
            one.window = at;
            at += one.bytes;
        }
        gpu.protect(start, bytes, Access::ReadWrite).map_err(device("map buffers to load them"))?;
        windows.push(opened);
    }
    Ok(windows)
}

impl Windows {
    /// Unmaps them; then the heap has its addresses again.
    pub(super) fn close(self, remote: &Remote) {
        let Windows { index, device, start, bytes, handles } = self;
        let unmapped =
            device.bind().and_then(|()| handles.iter().try_for_each(|(at, bytes)| device.unmap(*at, *bytes)));
        match unmapped {
            Ok(()) => remote.run(move |dispatcher| {
                if let Ok(heap) = dispatcher.client.heap(index) {
                    heap.give_addresses(start, bytes);
                }
            }),
            Err(code) => {
                log::warn!("the addresses that buffers were loaded through stay in use: {code}");
            }
        }
    }
}
