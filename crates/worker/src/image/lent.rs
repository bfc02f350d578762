//! Contents of buffers, copied from where another worker has them: on a GPU whose memory this one can have mapped.
//!
//! ```text
//!   the other worker's memory ──descriptors──▶ mapped here, read-only ──copied by the GPU──▶ the program's addresses
//! ```
//!
//! The other worker's program stands still until this is over, so that what is copied is all of one moment. What lies on a GPU
//! that the program keeps is not copied: both workers have it, and the one that goes on with the program uses it.

use std::os::fd::{AsFd, BorrowedFd};

use rekindle_device::{Access, Memory, Stream};

use super::LeftMemory;
use super::contents::PartLocation;
use super::error::{Error, Result, device};
use super::state::{State, buffer_part, physical_part};
use crate::client::Client;

/// Memory of the other worker's, as it is mapped here.
struct Window {
    address: u64,
    memory: Memory,
}

/// Has what lies on these devices be `left`, so that it is mapped in place of being copied; but for a program whose processes have
/// memory together, each of which finds it again by asking the others.
pub(super) fn keep(state: &State, stays: &[usize], lent: &mut LeftMemory, left: &mut LeftMemory) {
    if !state.ipc.is_empty() || !state.physical_shared.is_empty() {
        return;
    }
    let rows = state.devices.iter().enumerate().filter(|(device, _)| stays.contains(device));
    let buffers = rows.flat_map(|(_, row)| row.context.iter().flat_map(|context| &context.buffers));
    let physical = state.physical.iter().filter(|row| stays.contains(&row.device));
    let names = buffers.map(|buffer| buffer_part(buffer.address));
    let names = names.chain(physical.map(|row| physical_part(row.serial)));
    left.extend(names.filter_map(|name| lent.remove_entry(&name)));
}

/// Copies what belongs to each place, and returns how many bytes that were.
pub(super) fn copy(
    client: &mut Client,
    places: Vec<(String, PartLocation)>,
    lent: &LeftMemory,
) -> Result<u64> {
    let find = |(name, location): (String, PartLocation)| match lent.get(&name) {
        Some(memory) => Ok((location, memory.as_fd())),
        None => Err(Error::State(format!("the other worker has not given {name}"))),
    };
    let places = places.into_iter().map(find).collect::<Result<Vec<_>>>()?;
    copy_all(client, &places).map_err(device("copy its memory from the other GPU"))?;
    Ok(places.iter().map(|(location, _)| location.bytes).sum())
}

fn copy_all(client: &mut Client, places: &[(PartLocation, BorrowedFd<'_>)]) -> rekindle_device::Result<()> {
    let mut windows = Vec::with_capacity(places.len());
    for (number, (location, memory)) in places.iter().enumerate() {
        let window = open(client, location, *memory)?;
        let streams = &client.context(location.device)?.gpu.copies;
        // They go on side by side, as far as the GPU can.
        let stream = streams.get(number % streams.len().max(1)).copied().unwrap_or(Stream::LEGACY);
        client.on(location.device)?.copy(location.address, window.address, location.bytes, stream)?;
        windows.push(window);
    }
    for index in 0..client.contexts.len() {
        if client.context(index).is_ok() {
            client.on(index)?.synchronize()?;
        }
    }
    let close = |((location, _), window): (&(PartLocation, BorrowedFd<'_>), Window)| {
        let gpu = client.on(location.device)?;
        gpu.unmap(window.address, location.bytes)?;
        gpu.memory_release(window.memory)?;
        client.heap(location.device)?.give_addresses(window.address, location.bytes);
        Ok(())
    };
    places.iter().zip(windows).try_for_each(close)
}

fn open(
    client: &mut Client,
    location: &PartLocation,
    descriptor: BorrowedFd<'_>,
) -> rekindle_device::Result<Window> {
    client.bind(location.device)?;
    let heap = client.heap(location.device)?;
    let granularity = heap.granularity();
    let address = heap.take_addresses(location.bytes, granularity, 0)?;
    let gpu = client.on(location.device)?;
    let memory = gpu.memory_import(descriptor, location.bytes)?;
    gpu.map(address, location.bytes, memory)?;
    gpu.protect(address, location.bytes, Access::Read)?;
    Ok(Window { address, memory })
}
