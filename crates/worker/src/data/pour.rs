//! Bytes of the memory daemon's on their way to a GPU, while further ones come in from the store.
//!
//! ```text
//!   memory daemon's memory ═ the GPU copies what the driver was told of ([`Source`]) ═══════▶ window
//!        ║                                                                                   ▲
//!        ╚═ threads read ═▶ blocks ([`Basin`]) ═══════════════════════════ the GPU copies ═══╝
//! ```
//!
//! The second way is for what is small, and where the driver does not take memory that can only be read. A thread fills one
//! block while its other one is copied.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_cuda::CUDA_ERROR_UNKNOWN;
use rekindle_device::{Device, Event, Result, Stream};
use rekindle_protocol::fault;

use super::basin::{BLOCK, Basin, Block};
use super::errand::Stop;
use super::ranges::Ranges;
use super::source::Source;
use crate::gpu_link::GpuLink;

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// Into blocks one thread in four processors reads, and no more than keep the link busy. The driver learns memory for one thread
/// at a time: a second one makes both slower.
const MOST_READERS: usize = 4;
/// Objects under so many bytes go through blocks.
const SMALL: u64 = 4 << 20;
/// To tell the driver of memory takes it half a millisecond and something for each page: so much is told of at once at least,
/// if it comes, and at most, for the driver's other calls wait.
const LEAST: u64 = 8 << 20;
const MOST: u64 = 64 << 20;

/// From where to where.
pub(super) struct Pour<'p> {
    pub source: &'p Source,
    pub window: u64,
    pub gpu: &'p dyn Device,
    pub stream: Stream,
    /// Where copies give way to what programs copy.
    pub link: Option<&'p GpuLink>,
    pub basin: &'p Arc<Basin>,
    pub stop: &'p Stop,
}

/// What came of it.
pub(super) struct Poured<T> {
    pub told: T,
    pub copied: Result<()>,
    /// The GPU may go on reading from the source, for it has failed.
    pub is_lost: bool,
}

/// A block that is being copied.
struct UnderWay<'b> {
    block: Block<'b>,
    event: Event,
}

impl<'p> Pour<'p> {
    /// Pours all ranges that `tell` adds. When this returns no copy is under way, unless one is lost.
    pub(super) fn run<T>(&self, tell: impl FnOnce(&Ranges) -> T) -> Poured<T> {
        let ranges = Ranges::new(self.source.bytes());
        let is_small = self.source.bytes() < SMALL;
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads = if is_small { (cores / 4).clamp(1, MOST_READERS) } else { 1 };
        let (told, is_lost) = std::thread::scope(|scope| {
            let work = || {
                let (done, is_lost) = self.work(&ranges, is_small);
                if let Err(code) = done {
                    ranges.fail(code);
                }
                is_lost
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let told = tell(&ranges);
            ranges.end();
            let lost = threads.into_iter().map(|thread| thread.join().unwrap_or(true));
            (told, lost.fold(false, |one, other| one | other))
        });
        Poured { told, copied: ranges.failed().map_or(Ok(()), Err), is_lost }
    }

    /// Whether that was done, and whether the GPU may still read from the source.
    fn work(&self, ranges: &Ranges, is_small: bool) -> (Result<()>, bool) {
        if let Err(code) = self.gpu.bind() {
            return (Err(code), false);
        }
        if !is_small {
            let mut learned = (0, Duration::ZERO);
            let copied = self.copy_known(ranges, &mut learned);
            let began = Instant::now();
            let ended = self.gpu.stream_synchronize(self.stream);
            let ((bytes, time), waited) = (learned, began.elapsed());
            log::debug!(
                "the driver learned {bytes} bytes in {time:.1?}; their copies were waited for {waited:.1?}"
            );
            let done = copied.and(ended);
            if done.is_err() || self.source.can_be_known() {
                return (done, ended.is_err());
            }
        }
        let mut before = None;
        let done = self.rounds(ranges, &mut before);
        let last = before.map_or(Ok(()), |last| self.wait(last).map(drop));
        (done.and(last), false)
    }

    /// Has the GPU copy from the source, until there is nothing more or the driver does not take it. Copies may be under way
    /// when this returns. `learned`: how many bytes the driver was told of, and how long that took.
    fn copy_known(&self, ranges: &Ranges, learned: &mut (u64, Duration)) -> Result<()> {
        while self.source.can_be_known()
            && let Some((offset, bytes)) = ranges.take(LEAST, MOST)
        {
            let began = Instant::now();
            match self.source.know(offset, bytes) {
                Ok(address) => {
                    *learned = (learned.0 + bytes, learned.1 + began.elapsed());
                    fault::point("data-copy").map_err(|_| CUDA_ERROR_UNKNOWN)?;
                    self.copy(self.window + offset, address, bytes)?;
                }
                Err(_) => ranges.give_back((offset, bytes)),
            }
        }
        Ok(())
    }

    /// `before` is the block that is being copied, also when this returns.
    fn rounds(&self, ranges: &Ranges, before: &mut Option<UnderWay<'p>>) -> Result<()> {
        loop {
            let now = ranges.take_now(BLOCK as u64);
            // Nobody else is to wait for a block that is copied long since.
            if now.is_none()
                && let Some(former) = before.take()
            {
                drop(self.wait(former)?);
            }
            let next = now.or_else(|| ranges.take(BLOCK as u64, BLOCK as u64));
            let Some((offset, bytes)) = next else { return Ok(()) };
            let mut block = match (self.basin.take_now(), before.take()) {
                (Some(block), former) => {
                    *before = former;
                    block
                }
                (None, Some(former)) => self.wait(former)?,
                (None, None) => self.basin.take(self.stop)?,
            };
            let read = self.source.file().read_exact_at(block.bytes(bytes as usize), offset);
            read.map_err(|error| {
                log::error!("the memory daemon's memory cannot be read: {error}");
                CUDA_ERROR_UNKNOWN
            })?;
            let begun = self.begin(block, self.window + offset, bytes)?;
            if let Some(former) = before.replace(begun) {
                drop(self.wait(former)?);
            }
        }
    }

    fn begin(&self, block: Block<'p>, to: u64, bytes: u64) -> Result<UnderWay<'p>> {
        fault::point("data-copy").map_err(|_| CUDA_ERROR_UNKNOWN)?;
        let event = self.gpu.event_create(NO_TIMING)?;
        let copied = self.copy(to, block.address(), bytes);
        match copied.and_then(|()| self.gpu.event_record(event, self.stream, 0)) {
            Ok(()) => Ok(UnderWay { block, event }),
            Err(code) => {
                // The copy may have begun although its event could not be recorded.
                if self.gpu.stream_synchronize(self.stream).is_err() {
                    block.lose();
                }
                let _ = self.gpu.event_destroy(event);
                Err(code)
            }
        }
    }

    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        GpuLink::copy_by(self.link, self.gpu, (to, from, bytes), self.stream)
    }

    /// The block, once it is copied.
    fn wait(&self, UnderWay { block, event }: UnderWay<'p>) -> Result<Block<'p>> {
        let waited = self.gpu.event_synchronize(event);
        let _ = self.gpu.event_destroy(event);
        match waited {
            Ok(()) => Ok(block),
            Err(code) => {
                block.lose();
                Err(code)
            }
        }
    }
}
