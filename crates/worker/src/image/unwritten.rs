//! Which buffers a program leaves as they are: what programs restored from one image can share.
//!
//! A buffer whose contents hash to what the image has was not written to, or what was written was there before: a program
//! that is asked the same twice computes the same twice. Where contents do not matter any more, in an instance that is
//! only there to learn from, they are [marked](mark) first, so that whatever is written is seen.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rekindle_device::{MemorySet, Stream};
use rekindle_protocol::worker::CACHE_SLOT;
use rekindle_store::{ContentHash, Encoding, Image, Part, PartKind};

use super::block::{Blocks, Gpu};
use super::error::{Error, Result, device};
use super::save_memory;
use super::state::buffer_part;
use crate::dispatch::Dispatcher;
use crate::hashing::{Hasher, SUBTREE, VALUE};
use crate::memory::Content;

/// Registered memory that chunks come to, or the values that the device computes of them.
const ROOM: usize = 2 << 20;
/// One byte of so many is marked, the lowest of a number: numbers stay about what they were, and few change.
const MARKED: u64 = 512;
const MARK: u32 = 0x5a;

/// What buffers held when they had been marked, by their addresses.
pub(crate) struct Marks {
    hashes: HashMap<u64, Vec<ContentHash>>,
    /// How many requests the program had made by then.
    operations: u64,
}

/// A buffer that could be shared.
struct Large {
    index: usize,
    address: u64,
    bytes: u64,
    shared: bool,
}

/// Changes all large buffers a little. What the program computes from now on is worth nothing.
pub(crate) fn mark(dispatcher: &mut Dispatcher, stop: &AtomicBool) -> Result<()> {
    let mut hashes = HashMap::new();
    each(dispatcher, stop, |gpu, large, room| {
        let stream = gpu.streams.first().copied().unwrap_or(Stream::LEGACY);
        let set = MemorySet {
            address: large.address,
            pitch: MARKED,
            value: MARK,
            element: 1,
            width: 1,
            height: large.bytes / MARKED,
        };
        gpu.device.set(&set, stream)?;
        hashes.insert(large.address, hash(gpu, large.address, large.bytes, CACHE_SLOT, room)?);
        Ok(())
    })?;
    dispatcher.marks = Some(Marks { hashes, operations: dispatcher.client.operations });
    Ok(())
}

/// Names of the parts of large buffers that were not written to since they were marked, or else are as the image has
/// them; none if finding out takes long and is to be cheap, or the program has done nothing since. Work that is under way
/// may change them meanwhile.
pub(crate) fn unwritten(
    dispatcher: &mut Dispatcher,
    image: &Path,
    cheaply: bool,
    stop: &AtomicBool,
) -> Result<Option<Vec<String>>> {
    let has_hasher = |gpu: &Gpu| gpu.hasher.is_some();
    if cheaply && !save_memory::gpus(&dispatcher.client).iter().flatten().all(has_hasher) {
        return Ok(None);
    }
    let marks = dispatcher.marks.take();
    if marks.as_ref().is_some_and(|marks| marks.operations == dispatcher.client.operations) {
        return Ok(None);
    }
    let image = Image::open(image)?;
    let mut names = Vec::new();
    each(dispatcher, stop, |gpu, large, room| {
        let part = image.part(PartKind::GpuBuffer, &buffer_part(large.address));
        let Some(part) = part.filter(|part| part.bytes == large.bytes && part.file.is_none()) else {
            return Ok(());
        };
        let expected = match &marks {
            Some(marks) => marks.hashes.get(&large.address).cloned().unwrap_or_default(),
            None => hashes_of(part),
        };
        let chunk = if marks.is_some() { CACHE_SLOT } else { part.chunk_bytes };
        if large.shared || hash(gpu, large.address, large.bytes, chunk, room)? == expected {
            names.push(part.name.clone());
        }
        Ok(())
    })?;
    Ok(Some(names))
}

fn each(
    dispatcher: &mut Dispatcher,
    stop: &AtomicBool,
    mut look: impl FnMut(&Gpu, &Large, &mut [u8]) -> rekindle_device::Result<()>,
) -> Result<()> {
    let gpus = save_memory::gpus(&dispatcher.client);
    let any = dispatcher.client.any_device().map_err(device("be used"))?;
    let mut blocks = Blocks::new(any, ROOM, 1).map_err(device("pin a block of host memory"))?;
    let mut blocks = blocks.split();
    let [block] = &mut blocks[..] else { return Ok(()) };
    let room = block.bytes(ROOM).map_err(device("be used"))?;
    let contexts =
        dispatcher.client.contexts.iter().enumerate().filter_map(|(n, context)| Some((n, context.as_ref()?)));
    let large: Vec<Large> = contexts
        .flat_map(|(index, context)| {
            context.heap.buffers().iter().filter_map(move |(&address, buffer)| {
                let live = matches!(buffer.content, Content::Large { freed: false, .. });
                (live && buffer.is_backed() && buffer.bytes.is_multiple_of(MARKED)).then_some(Large {
                    index,
                    address,
                    bytes: buffer.bytes,
                    shared: buffer.shared,
                })
            })
        })
        .collect();
    for one in &large {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let Some(Some(gpu)) = gpus.get(one.index) else { continue };
        gpu.device.bind().and_then(|()| look(gpu, one, room)).map_err(device("hash a buffer"))?;
    }
    Ok(())
}

/// The hashes of all chunks of so many bytes that lie there.
fn hash(
    gpu: &Gpu,
    address: u64,
    bytes: u64,
    chunk: u64,
    room: &mut [u8],
) -> rekindle_device::Result<Vec<ContentHash>> {
    let stream = gpu.streams.first().copied().unwrap_or(Stream::LEGACY);
    let chunk = chunk.clamp(1, ROOM as u64);
    let mut hashes = Vec::new();
    let Some(hasher) = gpu.hasher.as_ref().filter(|_| Hasher::takes(chunk) && bytes.is_multiple_of(chunk))
    else {
        let mut at = 0;
        while at < bytes {
            let count = chunk.min(bytes - at);
            gpu.device.copy(room.as_mut_ptr() as u64, address + at, count, stream)?;
            gpu.device.stream_synchronize(stream)?;
            hashes.push(ContentHash::of(&room[..count as usize]));
            at += count;
        }
        return Ok(hashes);
    };
    let values = (chunk / SUBTREE) as usize * VALUE;
    let (count, most) = ((bytes / chunk) as usize, room.len() / values);
    while hashes.len() < count {
        let (first, now) = (hashes.len(), most.min(count - hashes.len()));
        for n in 0..now {
            let to = room.as_mut_ptr() as u64 + (n * values) as u64;
            hasher.enqueue(address + (first + n) as u64 * chunk, chunk, to, stream)?;
        }
        gpu.device.stream_synchronize(stream)?;
        hashes.extend(room[..now * values].chunks_exact(values).map(Hasher::finish));
    }
    Ok(hashes)
}

fn hashes_of(part: &Part) -> Vec<ContentHash> {
    let mut zeros = HashMap::new();
    let mut of_zeros =
        |bytes: u64| *zeros.entry(bytes).or_insert_with(|| ContentHash::of(&vec![0; bytes as usize]));
    let hash = |chunk: &rekindle_store::ChunkRef| match chunk.encoding {
        Encoding::Zero => of_zeros(chunk.bytes),
        _ => chunk.hash,
    };
    part.chunks.iter().map(hash).collect()
}
