//! Bytes of the memory daemon's on their way to a GPU, while further ones come in from the store.
//!
//! ```text
//!   memory daemon's memory ═ threads read ═▶ blocks ([`Basin`]) ═ the GPU copies ═▶ window
//!        ▲ ranges that are there, in any order    └ a thread fills one while its other one is copied
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rekindle_cuda::{CUDA_ERROR_UNKNOWN, CuResult};
use rekindle_device::{Device, Event, Result, Stream};
use rekindle_protocol::fault;

use super::basin::{BLOCK, Basin, Block};
use super::errand::Stop;

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// One thread in four processors reads, and no more than keep the link busy.
const MOST_THREADS: usize = 4;

/// From where to where.
pub(super) struct Pour<'p> {
    pub source: &'p File,
    pub window: u64,
    pub gpu: &'p dyn Device,
    pub stream: Stream,
    pub basin: &'p Basin,
    pub stop: &'p Stop,
}

/// What is there and not read yet.
#[derive(Default)]
pub(super) struct Ranges {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ranges: VecDeque<(u64, u64)>,
    /// There will be no more.
    ended: bool,
    failed: Option<CuResult>,
}

/// A block that is being copied.
struct UnderWay<'b> {
    block: Block<'b>,
    event: Event,
}

impl<'p> Pour<'p> {
    /// Pours all ranges that `tell` adds. When this returns no copy is under way.
    pub(super) fn run<T>(&self, tell: impl FnOnce(&Ranges) -> T) -> (T, Result<()>) {
        let ranges = Ranges::default();
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let told = std::thread::scope(|scope| {
            for _ in 0..(cores / 4).clamp(1, MOST_THREADS) {
                scope.spawn(|| {
                    if let Err(code) = self.work(&ranges) {
                        ranges.fail(code);
                    }
                });
            }
            let told = tell(&ranges);
            ranges.end();
            told
        });
        let failed = ranges.state().failed;
        (told, failed.map_or(Ok(()), Err))
    }

    fn work(&self, ranges: &Ranges) -> Result<()> {
        self.gpu.bind()?;
        let mut before = None;
        let done = self.rounds(ranges, &mut before);
        let last = before.map_or(Ok(()), |last| self.wait(last).map(drop));
        done.and(last)
    }

    /// `before` is the block that is being copied, also when this returns.
    fn rounds(&self, ranges: &Ranges, before: &mut Option<UnderWay<'p>>) -> Result<()> {
        loop {
            let now = ranges.take_now();
            // Nobody else is to wait for a block that is copied long since.
            if now.is_none()
                && let Some(former) = before.take()
            {
                drop(self.wait(former)?);
            }
            let Some((offset, bytes)) = now.or_else(|| ranges.take()) else { return Ok(()) };
            let mut block = match (self.basin.take_now(), before.take()) {
                (Some(block), former) => {
                    *before = former;
                    block
                }
                (None, Some(former)) => self.wait(former)?,
                (None, None) => self.basin.take(self.stop)?,
            };
            let read = self.source.read_exact_at(block.bytes(bytes as usize), offset);
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
        let copied = self.gpu.copy(to, block.address(), bytes, self.stream);
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

impl Ranges {
    /// These bytes are there. An error is why those before could not be copied.
    pub(super) fn add(&self, offset: u64, bytes: u64) -> Result<()> {
        let mut state = self.state();
        if let Some(code) = state.failed {
            return Err(code);
        }
        let end = offset + bytes;
        let cut = (offset..end).step_by(BLOCK).map(|at| (at, (BLOCK as u64).min(end - at)));
        state.ranges.extend(cut);
        self.changed.notify_all();
        Ok(())
    }

    fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    fn fail(&self, code: CuResult) {
        let mut state = self.state();
        state.failed.get_or_insert(code);
        state.ranges.clear();
        self.changed.notify_all();
    }

    fn take_now(&self) -> Option<(u64, u64)> {
        self.state().ranges.pop_front()
    }

    /// The next one, once it is there; none if there is none any more.
    fn take(&self) -> Option<(u64, u64)> {
        let mut state = self.state();
        loop {
            if let Some(range) = state.ranges.pop_front() {
                return Some(range);
            }
            if state.ended || state.failed.is_some() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
