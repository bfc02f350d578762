//! Contents of buffers on their way between GPU and store, on several threads.
//!
//! Each thread takes the next piece of a part, and has some blocks of pinned memory: while the GPU copies from or to the
//! others, the thread works on one. The copies share the link; compression, checking and file access are
//! spread over the threads. Chunks are hashed by the device where it can, else by the threads. Where a chunk's bytes
//! come from when it is loaded is up to [`Sources`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rekindle_device::Device;
use rekindle_store::Part;

use super::block::{Block, Blocks, Gpu, Preparing};
use super::block_pool::BlockPool;
use super::disk::Disk;
use super::error::{Error, Result, device as device_error};
use super::load_pipeline::LoadPipeline;
use super::progress::{Piece, Progress};
use super::source::{Extent, Sources};

/// More threads than this make it slower: they wait for each other in the driver.
const MOST_THREADS: usize = 12;
/// Threads and blocks of a save beside the running program.
const MOST_BESIDE: usize = 8;
pub(super) const BESIDE: usize = 4 * BLOCK;
/// As large as the largest chunk, and as a huge page.
pub(super) const BLOCK: usize = 2 << 20;
/// Blocks of each thread.
pub(super) const TURNS: usize = 4;

/// Where one part's contents lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PartLocation {
    pub device: usize,
    pub address: u64,
    pub bytes: u64,
}

/// The devices whose contexts are open, by the program's numbers.
pub(super) type Gpus = [Option<Gpu>];

/// Some cores are left to the CPU half, which goes on beside it.
pub(super) fn threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    (cores * 3 / 4).clamp(1, MOST_THREADS)
}

/// Begins to make the blocks that [`save`] or [`load`] will need, whichever devices they are for.
pub(super) fn prepare(device: Arc<dyn Device>, block_pool: &Arc<BlockPool>) -> Preparing {
    block_pool.take(device, BLOCK, threads() * TURNS)
}

/// Has a shelf hold what [`prepare`] will ask for.
pub(crate) fn stock(block_pool: &Arc<BlockPool>, device: Arc<dyn Device>) {
    block_pool.stock(device, BLOCK, threads() * TURNS);
}

/// As [`prepare`], for a save beside the running program. Blocks are larger: while the program enqueues more than the GPU
/// takes, each call of the driver waits for milliseconds.
pub(super) fn prepare_beside(device: Arc<dyn Device>, block_pool: &Arc<BlockPool>) -> Preparing {
    block_pool.take(device, BESIDE, threads().min(MOST_BESIDE) * TURNS)
}

/// How far the load of these parts has come: not at all. `order` is of the parts' numbers.
pub(super) fn to_load(work: &[(PartLocation, &Part)], sources: &Sources<'_>, order: &[usize]) -> Progress {
    let sizes: Vec<_> = work.iter().map(|(location, _)| location.bytes).collect();
    Progress::new(&sizes, |number, at| sources.cut(work[number].1, at), order)
}

/// Loads each part's contents, checked, to its place. `whole` is told when all of a part is there. Returns the blocks that
/// it has used.
pub(super) fn load(
    gpus: &Gpus,
    blocks: Option<Preparing>,
    sources: &Sources<'_>,
    work: &[(PartLocation, &Part)],
    progress: &Progress,
    stop: &AtomicBool,
    whole: impl Fn(usize) -> Result<()> + Sync,
) -> Result<Option<Blocks>> {
    let pieces = Pieces::of(progress, stop);
    let Some(mut made) = pieces.blocks(gpus, blocks)? else { return Ok(None) };
    let arrived = |number: usize| if progress.arrived(number) { whole(number) } else { Ok(()) };
    let disk = Disk::new();
    pieces.on_threads(&mut made, TURNS, |blocks| {
        let (mut turns, mut arrived) = (LoadPipeline::new(blocks, sources, &disk), arrived);
        while let Some(Piece { number, range }) = pieces.next()? {
            let (location, part) = &work[number];
            let (gpu, address) = (gpu(gpus, location)?, location.address + range.start);
            let extent = Extent { part, range, address };
            if !turns.fill(number, gpu, &extent)? {
                turns.begin(number, gpu, extent, &mut arrived)?;
            }
        }
        turns.finish_all(&mut arrived)
    })?;
    Ok(Some(made))
}

pub(super) fn gpu<'g>(gpus: &'g Gpus, location: &PartLocation) -> Result<&'g Gpu> {
    gpus.get(location.device).and_then(Option::as_ref).ok_or_else(|| {
        Error::State(format!("a buffer is on device {}, which has no context", location.device))
    })
}

/// All pieces of all parts, for threads to take.
pub(super) struct Pieces<'s> {
    progress: &'s Progress,
    failed: AtomicBool,
    stop: &'s AtomicBool,
}

impl<'s> Pieces<'s> {
    pub(super) fn of(progress: &'s Progress, stop: &'s AtomicBool) -> Pieces<'s> {
        Pieces { progress, failed: AtomicBool::new(false), stop }
    }

    pub(super) fn next(&self) -> Result<Option<Piece>> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        if self.failed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        Ok(self.progress.next())
    }

    /// What to copy through, made now if it was not before; none where nothing is to be copied.
    pub(super) fn blocks(&self, gpus: &Gpus, blocks: Option<Preparing>) -> Result<Option<Blocks>> {
        if self.progress.is_empty() {
            return Ok(None);
        }
        let device = gpus.iter().flatten().next().map(|gpu| gpu.device.clone());
        let blocks = blocks.or_else(|| device.map(|device| prepare(device, &Arc::default())));
        let blocks = blocks.ok_or_else(|| Error::State("no GPU's context is open".to_string()))?;
        blocks.wait().map(Some).map_err(device_error("pin host memory to copy through"))
    }

    /// Runs on as many threads as there are blocks for, so many each; the first error ends it.
    pub(super) fn on_threads(
        &self,
        blocks: &mut Blocks,
        turns: usize,
        run: impl Fn(&mut [Block<'_>]) -> Result<()> + Sync,
    ) -> Result<()> {
        let mut blocks = blocks.split();
        let run =
            |turns: &mut [Block<'_>]| run(turns).inspect_err(|_| self.failed.store(true, Ordering::Relaxed));
        std::thread::scope(|scope| {
            let handles: Vec<_> =
                blocks.chunks_exact_mut(turns).map(|turns| scope.spawn(|| run(turns))).collect();
            let results: Vec<_> = handles.into_iter().map(|handle| handle.join()).collect();
            results.into_iter().try_for_each(|result| match result {
                Ok(result) => result,
                Err(_) => Err(Error::Refused("a thread that copied buffers panicked".to_string())),
            })
        })
    }
}
