//! Contents of buffers on their way between GPU and store, on several threads.
//!
//! Each thread takes the next piece of a part, and has some blocks of pinned memory: while the GPU copies from or to the
//! others, the thread works on one. The copies share the link; compression, checking and file access are
//! spread over the threads. Chunks are hashed by the device where it can, else by the threads. Where a chunk's bytes
//! come from when it is loaded is up to [`Sources`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rekindle_device::Device;
use rekindle_store::{Part, PartWriter};

use super::block::{Block, Blocks, Gpu, Preparing};
use super::error::{Error, Result, device as device_error};
use super::source::{Extent, Sources};

/// More threads than this make it slower: they wait for each other in the driver.
const MOST_THREADS: usize = 12;
/// As large as the largest chunk, and as a huge page.
const BLOCK: usize = 2 << 20;
/// Blocks of each thread.
const TURNS: usize = 4;

/// Where one part's contents lie.
pub(super) struct Place {
    pub device: usize,
    pub address: u64,
    pub bytes: u64,
}

/// The devices whose contexts are open, by the program's numbers.
pub(super) type Gpus = [Option<Gpu>];

/// Some cores are left to the CPU half, which goes on beside it.
fn threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    (cores * 3 / 4).clamp(1, MOST_THREADS)
}

/// Begins to make the blocks that [`save`] or [`load`] will need, whichever devices they are for.
pub(super) fn prepare(device: Arc<dyn Device>) -> Preparing {
    Blocks::prepare(device, BLOCK, threads() * TURNS)
}

/// Writes each place's contents to its part.
pub(super) fn save(
    gpus: &Gpus,
    blocks: Preparing,
    work: &[(Place, PartWriter)],
    stop: &AtomicBool,
) -> Result<()> {
    let sizes: Vec<_> = work.iter().map(|(place, _)| place.bytes).collect();
    let chunk = |number: usize| work[number].1.chunk_bytes().clamp(1, BLOCK as u64);
    let pieces = Pieces::new(&sizes, |number, at| at + chunk(number), stop);
    let write = |piece: &Piece, block: &mut Block<'_>| -> Result<()> {
        let failed = |code| device_error("copy a buffer out")(code);
        let hash = block.hash().map_err(failed)?;
        let bytes = block.bytes(piece.count()).map_err(failed)?;
        let writer = &work[piece.number].1;
        match hash {
            Some(hash) => writer.write_chunk(piece.range.start, bytes, hash)?,
            None => writer.write_at(piece.range.start, bytes)?,
        }
        Ok(())
    };
    pieces.on_threads(blocks, |turns| {
        let mut under_way: VecDeque<(Piece, usize)> = VecDeque::with_capacity(TURNS);
        let mut turn = 0;
        loop {
            while under_way.len() < TURNS
                && let Some(piece) = pieces.next()?
            {
                let place = &work[piece.number].0;
                turns[turn]
                    .fetch(gpu(gpus, place)?, place.address + piece.range.start, piece.count())
                    .map_err(device_error("copy a buffer out"))?;
                under_way.push_back((piece, turn));
                turn = (turn + 1) % TURNS;
            }
            let Some((piece, turn)) = under_way.pop_front() else { return Ok(()) };
            write(&piece, &mut turns[turn])?;
        }
    })
}

/// Loads each part's contents, checked, to its place.
pub(super) fn load(
    gpus: &Gpus,
    blocks: Preparing,
    sources: &Sources<'_>,
    work: &[(Place, &Part)],
    stop: &AtomicBool,
) -> Result<()> {
    let sizes: Vec<_> = work.iter().map(|(place, _)| place.bytes).collect();
    let pieces = Pieces::new(&sizes, |number, at| sources.cut(work[number].1, at), stop);
    pieces.on_threads(blocks, |turns| {
        let mut open = [const { None }; TURNS];
        let mut turn = 0;
        while let Some(Piece { number, range }) = pieces.next()? {
            let (place, part) = &work[number];
            let (gpu, address) = (gpu(gpus, place)?, place.address + range.start);
            let extent = Extent { part, range, address };
            if sources.fill(gpu, &extent)? {
                continue;
            }
            let block = &mut turns[turn];
            sources.settle(block, open[turn].take())?;
            open[turn] = sources.bring(gpu, extent, block)?;
            turn = (turn + 1) % TURNS;
        }
        turns.iter_mut().zip(open).try_for_each(|(block, open)| sources.settle(block, open))
    })?;
    // What devices did by themselves has nobody else who waits for it.
    gpus.iter()
        .flatten()
        .try_for_each(|gpu| {
            gpu.device
                .bind()
                .and_then(|()| gpu.streams.iter().try_for_each(|s| gpu.device.stream_synchronize(*s)))
        })
        .map_err(device_error("copy a buffer in"))
}

fn gpu<'g>(gpus: &'g Gpus, place: &Place) -> Result<&'g Gpu> {
    gpus.get(place.device)
        .and_then(Option::as_ref)
        .ok_or_else(|| Error::State(format!("a buffer is on device {}, which has no context", place.device)))
}

/// Bytes of the part of this number.
struct Piece {
    number: usize,
    range: Range<u64>,
}

impl Piece {
    fn count(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

/// All pieces of all parts, for threads to take.
struct Pieces<'s> {
    all: Vec<(usize, Range<u64>)>,
    next: AtomicUsize,
    failed: AtomicBool,
    stop: &'s AtomicBool,
}

impl<'s> Pieces<'s> {
    /// Of parts of so many bytes; `cut` tells where the piece ends that begins at a place of a part.
    fn new(sizes: &[u64], cut: impl Fn(usize, u64) -> u64, stop: &'s AtomicBool) -> Pieces<'s> {
        let mut all = Vec::new();
        for (number, bytes) in sizes.iter().copied().enumerate() {
            let mut at = 0;
            while at < bytes {
                let end = cut(number, at).clamp(at + 1, bytes);
                all.push((number, at..end));
                at = end;
            }
        }
        Pieces { all, next: AtomicUsize::new(0), failed: AtomicBool::new(false), stop }
    }

    fn next(&self) -> Result<Option<Piece>> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        if self.failed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let piece = self.all.get(self.next.fetch_add(1, Ordering::Relaxed));
        Ok(piece.map(|(number, range)| Piece { number: *number, range: range.clone() }))
    }

    /// Runs on as many threads as there are pairs of blocks for; the first error ends it.
    fn on_threads(
        &self,
        blocks: Preparing,
        run: impl Fn(&mut [Block<'_>]) -> Result<()> + Sync,
    ) -> Result<()> {
        if self.all.is_empty() {
            return Ok(());
        }
        let mut blocks = blocks.wait().map_err(device_error("pin host memory to copy through"))?;
        let mut blocks = blocks.split();
        let run =
            |turns: &mut [Block<'_>]| run(turns).inspect_err(|_| self.failed.store(true, Ordering::Relaxed));
        std::thread::scope(|scope| {
            let handles: Vec<_> =
                blocks.chunks_exact_mut(TURNS).map(|turns| scope.spawn(|| run(turns))).collect();
            let results: Vec<_> = handles.into_iter().map(|handle| handle.join()).collect();
            results.into_iter().try_for_each(|result| match result {
                Ok(result) => result,
                Err(_) => Err(Error::Refused("a thread that copied buffers panicked".to_string())),
            })
        })
    }
}
