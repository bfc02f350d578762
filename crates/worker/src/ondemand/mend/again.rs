//! One request of the journal, done once more in the place of another worker.

use std::time::Duration;

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_protocol::operation::{
    Asynchronous, Copy, Download, EventAwait, EventElapsed, EventQuery, EventSynchronize, Id, MemoryFree,
    Origin, StreamAwait, StreamQuery, StreamRoom, StreamSynchronize, Synchronous, Upload, dispatch,
};

use crate::client::Client;
use crate::ondemand::journal::Entry;

/// How often it is looked whether the GPU has done all.
pub(super) const LOOK: Duration = Duration::from_micros(50);

/// A request that waited, unless it was answered. One that gives memory back is done in any case.
pub(super) fn wait_again(
    client: &mut Client,
    devices: &[usize],
    entry: &Entry<'_>,
) -> rekindle_device::Result<()> {
    let count = entry.trailer.try_into().map_or(u64::MAX, u64::from_le_bytes);
    let answered = client
        .threads
        .get(entry.ring)
        .is_none_or(|thread| u64::from(thread.ring.header().reply.count()) != count);
    if answered {
        awaited(client, devices, entry)?;
        if entry.opcode != MemoryFree::OPCODE {
            return Ok(());
        }
    }
    let mut failure = Ok(());
    let failed = |_: &mut Client, _, code| failure = Err(code);
    let answer = dispatch(client, Origin { ring: entry.ring }, entry.opcode, entry.body, &[], failed);
    if let Some(reply) = answer.map_err(|_| CUDA_ERROR_INVALID_VALUE)?.filter(|_| !answered) {
        client.reply(entry.ring, &reply);
    }
    failure
}

/// Waits as the program has done: what it asked for then came after that, in whichever stream.
fn awaited(client: &mut Client, devices: &[usize], entry: &Entry<'_>) -> rekindle_device::Result<()> {
    let invalid = |_| CUDA_ERROR_INVALID_VALUE;
    let body = entry.body;
    let stream = match entry.opcode {
        StreamSynchronize::OPCODE => postcard::from_bytes::<StreamSynchronize>(body)
            .map(|one| (one.device, one.stream))
            .map_err(invalid)?,
        StreamAwait::OPCODE => {
            postcard::from_bytes::<StreamAwait>(body).map(|one| (one.device, one.stream)).map_err(invalid)?
        }
        StreamQuery::OPCODE => {
            postcard::from_bytes::<StreamQuery>(body).map(|one| (one.device, one.stream)).map_err(invalid)?
        }
        EventSynchronize::OPCODE | EventAwait::OPCODE | EventQuery::OPCODE => {
            // All three are of an event alone.
            let event: Id = postcard::from_bytes(body).map_err(invalid)?;
            let (device, handle) = client.events.get(event).map(|event| (event.device, event.handle))?;
            return client.on(device)?.event_synchronize(handle);
        }
        EventElapsed::OPCODE => {
            let elapsed: EventElapsed = postcard::from_bytes(body).map_err(invalid)?;
            return [elapsed.start, elapsed.end].into_iter().try_for_each(|event| {
                let (device, handle) = client.events.get(event).map(|event| (event.device, event.handle))?;
                client.on(device)?.event_synchronize(handle)
            });
        }
        // It has learned nothing by it.
        StreamRoom::OPCODE => return Ok(()),
        _ => {
            for device in devices {
                while !client.is_idle(*device)? {
                    std::thread::sleep(LOOK);
                }
            }
            return Ok(());
        }
    };
    let (index, stream) = client.enter(Origin { ring: entry.ring }, stream.0, stream.1)?;
    client.on(index)?.stream_synchronize(stream)
}

/// Copies from the journal what came from the host.
pub(super) fn from_journal(
    client: &mut Client,
    entry: &Entry<'_>,
    memory: u64,
) -> rekindle_device::Result<()> {
    let (device, stream, to) = match entry.opcode {
        Upload::OPCODE => {
            postcard::from_bytes::<Upload>(entry.body).map(|one| (one.device, one.stream, one.to))
        }
        _ => postcard::from_bytes::<Copy>(entry.body).map(|one| (one.device, one.stream, one.to)),
    }
    .map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (index, stream) = client.enter(Origin { ring: entry.ring }, device, stream)?;
    let bytes = entry.staged.len() as u64;
    client.context(index)?.device.copy(to, memory + entry.staged_at as u64, bytes, stream)?;
    client.operations += 1;
    Ok(())
}

/// Copies what the program was given to where it is compared.
pub(super) fn to_scratch(
    client: &mut Client,
    entry: &Entry<'_>,
    at: u64,
    bytes: u64,
) -> rekindle_device::Result<()> {
    let (device, stream, from) = match entry.opcode {
        Download::OPCODE => {
            postcard::from_bytes::<Download>(entry.body).map(|one| (one.device, one.stream, one.from))
        }
        _ => postcard::from_bytes::<Copy>(entry.body).map(|one| (one.device, one.stream, one.from)),
    }
    .map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (index, stream) = client.enter(Origin { ring: entry.ring }, device, stream)?;
    client.context(index)?.device.copy(at, from, bytes, stream)?;
    client.operations += 1;
    Ok(())
}

/// Waits for a copy for which its thread has waited.
pub(super) fn follows(client: &mut Client, entry: &Entry<'_>) -> rekindle_device::Result<()> {
    if entry.opcode != Download::OPCODE {
        return Ok(());
    }
    let download: Download = postcard::from_bytes(entry.body).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (index, stream) = client.enter(Origin { ring: entry.ring }, download.device, download.stream)?;
    client.on(index)?.stream_synchronize(stream)
}
