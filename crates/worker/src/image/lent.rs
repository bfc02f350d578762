//! Contents of buffers, copied from where another worker has them: on a GPU whose memory this one can have mapped.
//!
//! ```text
//!   the other worker's memory ──descriptors──▶ mapped here, read-only ──copied by the GPU──▶ the program's addresses
//! ```
//!
//! The other worker's program stands still until this is over, so that what is copied is all of one moment.

use std::os::fd::{AsFd, BorrowedFd};

use rekindle_device::{Access, Memory, Stream};

use super::LeftMemory;
use super::contents::PartLocation;
use super::error::{Error, Result, device};
use crate::client::Client;

/// Memory of the other worker's, as it is mapped here.
struct Window {
    address: u64,
    memory: Memory,
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
