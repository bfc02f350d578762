//! The GPU halves of a program that stands still, one for each of its processes that use a GPU: all come to a stand, and all go
//! on, for a checkpoint, for sleep and for a move.
//!
//! ```text
//!   begin ── each: Quiesce ┬ all stand ── places ── each: save ──┬ end: they are elsewhere
//!                          └ one does not: all go on             └ resume, or dropped: all go on
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use rekindle_protocol::client::Quiesced;
use rekindle_protocol::worker::Contents;
use rekindle_store::{Draft, Part};

use crate::error::Result;
use crate::sandboxes::Sandbox;
use crate::sandboxes::quiesce::QuiesceBarrier;
use crate::timeline::Timeline;
use crate::workers::{Worker, gpu_half};

/// Dropped, it lets all clients go on as before.
pub struct Standstill<'a> {
    barriers: Vec<QuiesceBarrier<'a>>,
}

impl<'a> Standstill<'a> {
    /// Brings them to a stand side by side. If one does not come to it, all go on.
    pub fn begin(
        sandbox: &'a Sandbox,
        workers: impl IntoIterator<Item = &'a Arc<Worker>>,
        contents: Contents,
    ) -> Result<Standstill<'a>> {
        let workers: Vec<&'a Arc<Worker>> = workers.into_iter().collect();
        let begun = gpu_half::each(&workers, |worker| QuiesceBarrier::begin(sandbox, worker, contents));
        Ok(Standstill { barriers: begun? })
    }

    /// In the order of their workers, as all that follows.
    pub fn barriers_mut(&mut self) -> &mut [QuiesceBarrier<'a>] {
        &mut self.barriers
    }

    pub fn clients(&self) -> impl Iterator<Item = &Quiesced> {
        self.barriers.iter().map(|barrier| &barrier.client)
    }

    /// The processes whose halves an image has apart; none where there is a single half.
    pub fn apart(&self) -> Vec<u32> {
        match &self.barriers[..] {
            [] | [_] => Vec::new(),
            several => several.iter().map(|barrier| barrier.client.process).collect(),
        }
    }

    /// Where in one image each half is written to.
    pub fn paths(&self, draft: &Draft) -> Vec<PathBuf> {
        match &self.barriers[..] {
            [_] => vec![draft.path().to_path_buf()],
            several => several.iter().map(|barrier| draft.half_path(barrier.client.process)).collect(),
        }
    }

    /// Lets all go on, each whether or not another did; the first failure is told.
    pub fn resume(self) -> Result<()> {
        self.barriers.into_iter().map(QuiesceBarrier::resume).fold(Ok(()), Result::and)
    }

    /// The clients are gone, or others', as was wanted.
    pub fn end(self) {
        self.barriers.into_iter().for_each(QuiesceBarrier::end);
    }
}

/// Has each worker write its half to its place, side by side.
pub fn save(
    workers: &[Arc<Worker>],
    paths: &[PathBuf],
    contents: Contents,
    timeline: &Timeline,
) -> Result<Vec<Part>> {
    let halves: Vec<_> = workers.iter().zip(paths).collect();
    let saved = gpu_half::each(&halves, |(worker, place)| gpu_half::save(worker, place, contents, timeline))?;
    Ok(saved.concat())
}
