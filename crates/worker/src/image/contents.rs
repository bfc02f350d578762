//! Contents of buffers on their way between GPU and store, on several threads.
//!
//! Each thread takes the next piece of a part, and has some blocks of pinned memory: while the GPU copies from or to the
//! others, the thread works on one. The copies share the link; compression, checking and file access are
//! spread over the threads. Chunks are hashed by the device where it can, else by the threads. Where a chunk's bytes
//! come from when it is loaded is up to [`Sources`].

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rekindle_device::Device;
use rekindle_store::{ContentHash, Part, PartWriter};

use super::block::{Block, Blocks, Gpu, Preparing};
use super::disk::Disk;
use super::error::{Error, Result, device as device_error};
use super::progress::{Piece, Progress};
use super::source::{Extent, Sources};
use super::turns::Turns;

/// More threads than this make it slower: they wait for each other in the driver.
const MOST_THREADS: usize = 12;
/// Of a save beside the running program.
const MOST_BESIDE: usize = 8;
/// As large as the largest chunk, and as a huge page.
pub(super) const BLOCK: usize = 2 << 20;
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

/// As [`prepare`], for a save beside the running program: what is under way through these holds its own copies up for
/// half a millisecond at most.
pub(super) fn prepare_beside(device: Arc<dyn Device>) -> Preparing {
    Blocks::prepare(device, BLOCK, threads().min(MOST_BESIDE) * TURNS)
}

/// Writes each place's contents to its part. What the device hashes is hashed first, unless `hashes` has the hash of what
/// lies there, and copied only if the store does not have it. Returns how many bytes were copied, and the blocks.
pub(super) fn save(
    gpus: &Gpus,
    blocks: Option<Preparing>,
    work: &[(Place, PartWriter)],
    hashes: impl Fn(&Place, Range<u64>) -> Option<ContentHash> + Sync,
    stop: &AtomicBool,
) -> Result<(u64, Option<Blocks>)> {
    let sizes: Vec<_> = work.iter().map(|(place, _)| place.bytes).collect();
    let chunk = |number: usize| work[number].1.chunk_bytes().clamp(1, BLOCK as u64);
    let progress = Progress::new(&sizes, |number, at| at + chunk(number), &[]);
    let pieces = Pieces::of(&progress, stop);
    let Some(mut made) = pieces.blocks(gpus, blocks)? else { return Ok((0, None)) };
    let copied = AtomicU64::new(0);
    let failed = || device_error("copy a buffer out");
    // Whether it is on its way afterwards.
    let go_on = |step: &mut Step, piece: &Piece, block: &mut Block<'_>| -> Result<bool> {
        let (place, writer) = &work[piece.number];
        let (start, count) = (piece.range.start, piece.count());
        let (gpu, address) = (gpu(gpus, place)?, place.address + start);
        *step = match *step {
            Step::Begun => match hashes(place, piece.range.clone()) {
                Some(hash) => Step::Hashed(Some(hash)),
                None if block.look(gpu, address, count).map_err(failed())? => Step::Hashed(None),
                None => {
                    block.fetch_hashed(gpu, address, count).map_err(failed())?;
                    Step::Copied(None)
                }
            },
            Step::Hashed(known) => {
                let hash = match known {
                    Some(hash) => Some(hash),
                    None => block.hash().map_err(failed())?,
                };
                if let Some(hash) = hash
                    && writer.enter_known(start, hash)?
                {
                    return Ok(false);
                }
                block.fetch_hashed(gpu, address, count).map_err(failed())?;
                Step::Copied(hash)
            }
            Step::Copied(hash) => {
                let bytes = block.bytes(count).map_err(failed())?;
                match hash {
                    Some(hash) => writer.write_chunk(start, bytes, hash)?,
                    None => writer.write_at(start, bytes)?,
                }
                copied.fetch_add(count as u64, Ordering::Relaxed);
                return Ok(false);
            }
        };
        Ok(true)
    };
    pieces.on_threads(&mut made, |turns| {
        let mut under_way = VecDeque::with_capacity(TURNS);
        let mut free: Vec<usize> = (0..turns.len()).collect();
        loop {
            while !free.is_empty()
                && let Some(piece) = pieces.next()?
            {
                under_way.extend(free.pop().map(|turn| (Step::Begun, piece, turn)));
            }
            let Some((mut step, piece, turn)) = under_way.pop_front() else { return Ok(()) };
            match go_on(&mut step, &piece, &mut turns[turn])? {
                true => under_way.push_back((step, piece, turn)),
                false => free.push(turn),
            }
        }
    })?;
    Ok((copied.into_inner(), Some(made)))
}

/// Copies so much out, which may be more than a block holds.
pub(super) fn fetch(
    gpu: &Gpu,
    blocks: &mut Blocks,
    address: u64,
    bytes: u64,
) -> rekindle_device::Result<Vec<u8>> {
    let mut blocks = blocks.split();
    let mut all = Vec::with_capacity(bytes as usize);
    while let Some(block) = blocks.first_mut().filter(|_| (all.len() as u64) < bytes) {
        let count = block.capacity().min(bytes as usize - all.len());
        block.fetch_hashed(gpu, address + all.len() as u64, count)?;
        all.extend_from_slice(block.bytes(count)?);
    }
    Ok(all)
}

/// Where so many bytes of an image were had, of which some were copied.
pub(super) fn origin(bytes: u64, copied: u64) -> BTreeMap<String, u64> {
    let from = [("GPU", copied), ("store", bytes.saturating_sub(copied))];
    from.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| (name.to_string(), bytes)).collect()
}

/// How far a piece has come that is saved.
#[derive(Clone, Copy)]
enum Step {
    Begun,
    /// Its hash is known, or on its way.
    Hashed(Option<ContentHash>),
    /// It is on its way itself. Without a hash the processor makes one.
    Copied(Option<ContentHash>),
}

/// How far the load of these parts has come: not at all. `order` is of the parts' numbers.
pub(super) fn to_load(work: &[(Place, &Part)], sources: &Sources<'_>, order: &[usize]) -> Progress {
    let sizes: Vec<_> = work.iter().map(|(place, _)| place.bytes).collect();
    Progress::new(&sizes, |number, at| sources.cut(work[number].1, at), order)
}

/// Loads each part's contents, checked, to its place. `whole` is told when all of a part is there. Returns the blocks that
/// it has used: letting go of them waits for all that the device is doing, and holds up what is to come.
pub(super) fn load(
    gpus: &Gpus,
    blocks: Option<Preparing>,
    sources: &Sources<'_>,
    work: &[(Place, &Part)],
    progress: &Progress,
    stop: &AtomicBool,
    whole: impl Fn(usize) -> Result<()> + Sync,
) -> Result<Option<Blocks>> {
    let pieces = Pieces::of(progress, stop);
    let Some(mut made) = pieces.blocks(gpus, blocks)? else { return Ok(None) };
    let arrived = |number: usize| if progress.arrived(number) { whole(number) } else { Ok(()) };
    // What devices do by themselves has nobody else who waits for it.
    let filled = |numbers: &mut Vec<usize>| {
        if numbers.is_empty() {
            return Ok(());
        }
        gpus.iter().flatten().try_for_each(Gpu::wait).map_err(device_error("copy a buffer in"))?;
        numbers.drain(..).try_for_each(arrived)
    };
    let disk = Disk::new();
    pieces.on_threads(&mut made, |blocks| {
        let mut turns = Turns::new(blocks, sources, &disk);
        let mut fills = Vec::new();
        while let Some(Piece { number, range }) = pieces.next()? {
            let (place, part) = &work[number];
            let (gpu, address) = (gpu(gpus, place)?, place.address + range.start);
            let extent = Extent { part, range, address };
            if sources.fill(gpu, &extent)? {
                fills.push(number);
                continue;
            }
            turns.begin(number, gpu, extent)?.map_or(Ok(()), arrived)?;
            filled(&mut fills)?;
        }
        filled(&mut fills)?;
        turns.finish_all(arrived)
    })?;
    Ok(Some(made))
}

fn gpu<'g>(gpus: &'g Gpus, place: &Place) -> Result<&'g Gpu> {
    gpus.get(place.device)
        .and_then(Option::as_ref)
        .ok_or_else(|| Error::State(format!("a buffer is on device {}, which has no context", place.device)))
}

/// All pieces of all parts, for threads to take.
struct Pieces<'s> {
    progress: &'s Progress,
    failed: AtomicBool,
    stop: &'s AtomicBool,
}

impl<'s> Pieces<'s> {
    fn of(progress: &'s Progress, stop: &'s AtomicBool) -> Pieces<'s> {
        Pieces { progress, failed: AtomicBool::new(false), stop }
    }

    fn next(&self) -> Result<Option<Piece>> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        if self.failed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        Ok(self.progress.next())
    }

    /// What to copy through, made now if it was not before; none where nothing is to be copied.
    fn blocks(&self, gpus: &Gpus, blocks: Option<Preparing>) -> Result<Option<Blocks>> {
        if self.progress.is_empty() {
            return Ok(None);
        }
        let device = gpus.iter().flatten().next().map(|gpu| gpu.device.clone());
        let blocks = blocks.or_else(|| device.map(prepare));
        let blocks = blocks.ok_or_else(|| Error::State("no GPU's context is open".to_string()))?;
        blocks.wait().map(Some).map_err(device_error("pin host memory to copy through"))
    }

    /// Runs on as many threads as there are blocks for; the first error ends it.
    fn on_threads(
        &self,
        blocks: &mut Blocks,
        run: impl Fn(&mut [Block<'_>]) -> Result<()> + Sync,
    ) -> Result<()> {
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
