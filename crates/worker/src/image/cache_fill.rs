//! Filling a cache in GPU memory, by a worker that has nobody to serve yet.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rekindle_protocol::worker::{CACHE_SLOT, CacheMemory, Cached};
use rekindle_store::{Image, PartKind};

use super::block::Blocks;
use super::error::{Error, Result, device};
use super::save_memory;
use super::source::{Brought, Extent, Sources};
use crate::dispatch::Dispatcher;

/// Blocks that chunks go through which no cache holds yet.
const BLOCKS: usize = 4;

/// Makes memory for a cache.
pub(crate) fn make_cache_memory(dispatcher: &mut Dispatcher, memory: CacheMemory) -> Result<OwnedFd> {
    let index = memory.device.unwrap_or_default();
    dispatcher.client.open(index).map_err(device("be used"))?;
    let heap = dispatcher.client.heap(index).map_err(device("be used"))?;
    dispatcher.cache.make_room(heap).map_err(device("reserve addresses for a cache"))?;
    let context = dispatcher.client.context(index).map_err(device("be used"))?;
    let made = dispatcher.cache.make(context.device.clone(), &memory);
    made.map_err(device(format!("make {} bytes of memory", memory.bytes)))
}

/// Loads chunks of the image, checked, into memory of a cache.
pub(crate) fn fill_cache(
    dispatcher: &mut Dispatcher,
    image: &Path,
    (memory, descriptor): (CacheMemory, OwnedFd),
    into: &[Cached],
    cached: Vec<Cached>,
    stop: &AtomicBool,
) -> Result<()> {
    if dispatcher.client.board.is_some() {
        return Err(Error::Refused(
            "this worker has a program; another one is to fill the cache".to_string(),
        ));
    }
    let image = Image::open(image)?;
    let index = memory.device.unwrap_or_default();
    dispatcher.client.open(index).map_err(device("be used"))?;
    let gpus = save_memory::gpus(&dispatcher.client);
    let gpu = gpus.get(index).and_then(Option::as_ref);
    let gpu =
        gpu.ok_or_else(|| Error::State(format!("a cache is on device {index}, which has no context")))?;
    let views = dispatcher.cache.open_host(cached);
    let sources = Sources::of(&image, &views, None);
    let heap = dispatcher.client.heap(index).map_err(device("be used"))?;
    dispatcher.cache.make_room(heap).map_err(device("reserve addresses for a cache"))?;
    let mapped = dispatcher.cache.writable(gpu.device.clone(), &memory, &descriptor);
    let mapped = mapped.map_err(device("map memory of a cache"))?;
    let blocks = Blocks::new(gpu.device.clone(), CACHE_SLOT as usize, BLOCKS);
    let mut blocks = blocks.map_err(device("pin host memory to copy through"))?;
    let mut blocks = blocks.split();
    let mut open = [const { None }; BLOCKS];
    let mut index = 0;
    for row in into {
        let part = image.part(PartKind::GpuBuffer, &row.part);
        let part = part.ok_or_else(|| Error::State(format!("the image has no part {}", row.part)))?;
        let end = ((row.first + row.count) * CACHE_SLOT).min(part.bytes);
        let fits = row.offset.checked_add(row.count * CACHE_SLOT).is_some_and(|end| end <= memory.bytes);
        if part.chunk_bytes != CACHE_SLOT || !fits {
            return Err(Error::State(format!("chunks of part {} do not fit into the cache", row.part)));
        }
        let mut at = row.first * CACHE_SLOT;
        while at < end {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let next = sources.cut(part, at).min(end);
            let address = mapped.address() + row.offset + (at - row.first * CACHE_SLOT);
            let extent = Extent { part, range: at..next, address };
            at = next;
            let block = &mut blocks[index];
            if sources.fill(gpu, &extent, block.stream(gpu))? {
                continue;
            }
            sources.settle(block, open[index].take())?;
            if let Brought::Copies(unproved) = sources.bring(gpu, extent, block, None)? {
                open[index] = unproved;
            }
            index = (index + 1) % BLOCKS;
        }
    }
    blocks.iter_mut().zip(open).try_for_each(|(block, open)| sources.settle(block, open))?;
    let finish = |()| gpu.streams.iter().try_for_each(|stream| gpu.device.stream_synchronize(*stream));
    gpu.device.bind().and_then(finish).map_err(device("copy into a cache"))
}
