//! Contents of buffers on their way between GPU and store, on several threads.
//!
//! Each thread takes the next piece, one chunk of a part, moves it through a pinned block of its own, and goes on. The
//! copies share the link; hashing, compression, checking and file access are spread over the threads.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rekindle_device::Device;
use rekindle_store::{Image, Part, PartWriter};

use super::block::Block;
use super::error::{Error, Result, device as device_error};

/// More threads than this do not make it faster.
const MOST_THREADS: usize = 16;

/// Where one part's contents lie.
pub(super) struct Place {
    pub device: usize,
    pub address: u64,
    pub bytes: u64,
}

type Contexts = [Option<Arc<dyn Device>>];

/// Writes each place's contents to its part.
pub(super) fn save(contexts: &Contexts, work: &[(Place, PartWriter)], stop: &AtomicBool) -> Result<()> {
    let sizes: Vec<_> = work.iter().map(|(place, writer)| (place.bytes, writer.chunk_bytes())).collect();
    each_piece(
        contexts,
        &sizes,
        |n| work[n].0.device,
        stop,
        |n, piece, block| {
            let (place, writer) = &work[n];
            let count = (piece.end - piece.start) as usize;
            let bytes =
                block.fetch(place.address + piece.start, count).map_err(device_error("copy a buffer out"))?;
            Ok(writer.write_at(piece.start, bytes)?)
        },
    )
}

/// Loads each part's contents, checked, to its place.
pub(super) fn load(
    contexts: &Contexts,
    image: &Image,
    work: &[(Place, &Part)],
    stop: &AtomicBool,
) -> Result<()> {
    let sizes: Vec<_> = work.iter().map(|(place, part)| (place.bytes, part.chunk_bytes)).collect();
    each_piece(
        contexts,
        &sizes,
        |n| work[n].0.device,
        stop,
        |n, piece, block| {
            let (place, part) = &work[n];
            let count = (piece.end - piece.start) as usize;
            image.read_part(part, piece.start, block.bytes(count))?;
            block.put(place.address + piece.start, count).map_err(device_error("copy a buffer in"))
        },
    )
}

/// Calls `act` for every chunk of every part, from as many threads as there are cores.
fn each_piece(
    contexts: &Contexts,
    sizes: &[(u64, u64)],
    device_of: impl Fn(usize) -> usize + Sync,
    stop: &AtomicBool,
    act: impl Fn(usize, Range<u64>, &mut Block) -> Result<()> + Sync,
) -> Result<()> {
    let pieces: Vec<(usize, Range<u64>)> = sizes
        .iter()
        .enumerate()
        .flat_map(|(n, (bytes, chunk))| {
            let (bytes, chunk) = (*bytes, (*chunk).max(1));
            (0..bytes.div_ceil(chunk)).map(move |at| (n, at * chunk..((at + 1) * chunk).min(bytes)))
        })
        .collect();
    let largest = pieces.iter().map(|(_, piece)| piece.end - piece.start).max().unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let threads = cores.min(MOST_THREADS).min(pieces.len());
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let run = || -> Result<()> {
        let mut blocks: Vec<Option<Block>> = contexts.iter().map(|_| None).collect();
        while let Some((n, piece)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            if failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let device = device_of(*n);
            let gpu = contexts.get(device).and_then(Option::as_ref);
            let (Some(gpu), Some(slot)) = (gpu, blocks.get_mut(device)) else {
                return Err(Error::State(format!("a buffer is on device {device}, which has no context")));
            };
            gpu.bind().map_err(device_error("be used by a thread"))?;
            let block = match slot {
                Some(block) => block,
                None => {
                    let block = Block::new(gpu.clone(), largest as usize);
                    slot.insert(block.map_err(device_error("pin a block of host memory"))?)
                }
            };
            act(*n, piece.clone(), block)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| run().inspect_err(|_| failed.store(true, Ordering::Relaxed))))
            .collect();
        let results: Vec<_> = handles.into_iter().map(|handle| handle.join()).collect();
        results.into_iter().try_for_each(|result| match result {
            Ok(result) => result,
            Err(_) => Err(Error::Refused("a thread that copied buffers panicked".to_string())),
        })
    })
}
