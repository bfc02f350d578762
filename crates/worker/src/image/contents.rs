//! Contents of buffers on their way between GPU and store, on several threads.
//!
//! Each thread takes the next piece, one chunk of a part, and has two blocks of pinned memory: while the GPU copies
//! from or to one, the thread works on the other. The copies share the link; compression, checking and file access are
//! spread over the threads. Chunks are hashed by the device where it can, else by the threads.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rekindle_device::{Device, MemorySet, Stream};
use rekindle_store::{Checked, ContentHash, Encoding, Image, Part, PartWriter};

use super::block::{Block, Blocks, Gpu, Preparing};
use super::error::{Error, Result, device as device_error};
use crate::hashing::Hasher;

/// More threads than this do not make it faster.
const MOST_THREADS: usize = 16;
/// As large as the largest chunk, and as a huge page.
const BLOCK: usize = 2 << 20;
/// Blocks of each thread.
const TURNS: usize = 2;

/// Where one part's contents lie.
pub(super) struct Place {
    pub device: usize,
    pub address: u64,
    pub bytes: u64,
}

/// The devices whose contexts are open, by the program's numbers.
pub(super) type Gpus = [Option<Gpu>];

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(MOST_THREADS)
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
    let sizes: Vec<_> = work.iter().map(|(place, writer)| (place.bytes, writer.chunk_bytes())).collect();
    let pieces = Pieces::new(&sizes, stop);
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
        let mut last: Option<(Piece, usize)> = None;
        let mut turn = 0;
        loop {
            let next = pieces.next()?;
            if let Some(piece) = &next {
                let place = &work[piece.number].0;
                turns[turn]
                    .fetch(gpu(gpus, place)?, place.address + piece.range.start, piece.count())
                    .map_err(device_error("copy a buffer out"))?;
            }
            if let Some((piece, turn)) = last.take() {
                write(&piece, &mut turns[turn])?;
            }
            let Some(piece) = next else { return Ok(()) };
            last = Some((piece, turn));
            turn = (turn + 1) % TURNS;
        }
    })
}

/// Loads each part's contents, checked, to its place.
pub(super) fn load(
    gpus: &Gpus,
    blocks: Preparing,
    image: &Image,
    work: &[(Place, &Part)],
    stop: &AtomicBool,
) -> Result<()> {
    let sizes: Vec<_> = work.iter().map(|(place, part)| (place.bytes, part.chunk_bytes)).collect();
    let pieces = Pieces::new(&sizes, stop);
    pieces.on_threads(blocks, |turns| {
        let put = |code| device_error("copy a buffer in")(code);
        let mut open: [Option<Unproved>; TURNS] = [const { None }; TURNS];
        let mut turn = 0;
        while let Some(piece) = pieces.next()? {
            let (place, part) = &work[piece.number];
            let (gpu, address) = (gpu(gpus, place)?, place.address + piece.range.start);
            if is_zero(part, &piece) {
                zero(gpu, address, piece.range.end - piece.range.start).map_err(put)?;
                continue;
            }
            let block = &mut turns[turn];
            prove(image, work, block, &mut open[turn])?;
            let bytes = block.bytes(piece.count()).map_err(put)?;
            if gpu.hasher.is_some() && Hasher::takes(bytes.len() as u64) {
                let checked = image.read_chunk_to_check(part, piece.range.start, bytes)?;
                block.put(gpu, address, piece.count()).map_err(put)?;
                if let Checked::ByCaller(expected) = checked {
                    open[turn] = Some(Unproved { piece, expected });
                }
            } else {
                image.read_part(part, piece.range.start, bytes)?;
                block.put(gpu, address, piece.count()).map_err(put)?;
            }
            turn = (turn + 1) % TURNS;
        }
        for (block, open) in turns.iter_mut().zip(&mut open) {
            block.wait().map_err(put)?;
            prove(image, work, block, open)?;
        }
        Ok(())
    })?;
    // What was filled with zeros has nobody else who waits for it.
    gpus.iter()
        .flatten()
        .try_for_each(|gpu| {
            gpu.device
                .bind()
                .and_then(|()| gpu.streams.iter().try_for_each(|s| gpu.device.stream_synchronize(*s)))
        })
        .map_err(device_error("copy a buffer in"))
}

/// A piece on its way to the device, which is to hash to this.
struct Unproved {
    piece: Piece,
    expected: ContentHash,
}

/// Compares what the device has found with what it was to find, once it has.
fn prove(
    image: &Image,
    work: &[(Place, &Part)],
    block: &mut Block<'_>,
    open: &mut Option<Unproved>,
) -> Result<()> {
    let Some(Unproved { piece, expected }) = open.take() else { return Ok(()) };
    match block.hash().map_err(device_error("copy a buffer in"))? {
        Some(found) if found == expected => Ok(()),
        found => {
            let found = found.unwrap_or_else(|| ContentHash::of(&[]));
            Err(image.damaged(work[piece.number].1, piece.range.start, found).into())
        }
    }
}

fn is_zero(part: &Part, piece: &Piece) -> bool {
    let chunk = part.chunks.get((piece.range.start / part.chunk_bytes.max(1)) as usize);
    part.file.is_none() && chunk.is_some_and(|chunk| chunk.encoding == Encoding::Zero)
}

/// Fills device memory in place of copying zeros to it.
fn zero(gpu: &Gpu, address: u64, bytes: u64) -> rekindle_device::Result<()> {
    gpu.device.bind()?;
    let stream = gpu.streams.first().copied().unwrap_or(Stream::LEGACY);
    let set = MemorySet { address, pitch: bytes, value: 0, element: 1, width: bytes, height: 1 };
    gpu.device.set(&set, stream)
}

fn gpu<'g>(gpus: &'g Gpus, place: &Place) -> Result<&'g Gpu> {
    gpus.get(place.device)
        .and_then(Option::as_ref)
        .ok_or_else(|| Error::State(format!("a buffer is on device {}, which has no context", place.device)))
}

/// A chunk of the part of this number.
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
    /// Of parts of so many bytes in chunks of so many.
    fn new(sizes: &[(u64, u64)], stop: &'s AtomicBool) -> Pieces<'s> {
        let chunks = |(number, (bytes, chunk)): (usize, &(u64, u64))| {
            let (bytes, chunk) = (*bytes, (*chunk).clamp(1, BLOCK as u64));
            (0..bytes.div_ceil(chunk)).map(move |at| (number, at * chunk..((at + 1) * chunk).min(bytes)))
        };
        let all = sizes.iter().enumerate().flat_map(chunks).collect();
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
