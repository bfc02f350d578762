//! The GPU halves of a program that stands still, one for each of its processes that use a GPU: all come to a stand, and all go
//! on, for a checkpoint, for sleep and for a move.
//!
//! ```text
//!   begin ── each: Quiesce ┬ all stand ── places ── each: save ──┬ end: they are elsewhere
//!                          └ one does not: all go on             └ resume, or dropped: all go on
//! ```
//!
//! Kernels of one process may wait for those of another, as collectives do. If one was stopped before it had launched its own,
//! the other's GPU work does not end. So while some stand and others do not, those that stand make a call more in each of their
//! threads, and then some more, until what the others wait for was launched ([`Rounds`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rekindle_protocol::client::Quiesced;
use rekindle_protocol::rounds::Rounds;
use rekindle_protocol::worker::Contents;
use rekindle_store::{Draft, Part};

use crate::error::Result;
use crate::sandboxes::Sandbox;
use crate::sandboxes::quiesce::QuiesceBarrier;
use crate::timeline::Timeline;
use crate::workers::{Worker, gpu_half};

/// How long those that stand wait for the others at first.
const PATIENCE: Duration = Duration::from_millis(50);
/// For so long there are rounds.
const TOGETHER_LIMIT: Duration = Duration::from_secs(30);

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
        let barriers = match &workers[..] {
            [worker] => vec![QuiesceBarrier::begin(sandbox, worker, contents)?],
            several => together(sandbox, several, contents)?,
        };
        Ok(Standstill { barriers })
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

/// Brings several to a stand, in the order of their workers.
fn together<'a>(
    sandbox: &'a Sandbox,
    workers: &[&'a Arc<Worker>],
    contents: Contents,
) -> Result<Vec<QuiesceBarrier<'a>>> {
    let began = Instant::now();
    let (sender, arrivals) = channel();
    std::thread::scope(|scope| {
        let come = |at: usize, come: Box<dyn FnOnce() -> Result<QuiesceBarrier<'a>> + Send + 'a>| {
            let sender = sender.clone();
            // Whoever receives is there until all have come.
            scope.spawn(move || drop(sender.send((at, come()))));
        };
        for (at, worker) in workers.iter().copied().enumerate() {
            come(at, Box::new(move || QuiesceBarrier::begin(sandbox, worker, contents)));
        }
        let mut standing: BTreeMap<usize, QuiesceBarrier<'_>> = BTreeMap::new();
        let (mut coming, mut failure) = (workers.len(), None);
        let mut rounds = Rounds::new(PATIENCE);
        while coming > 0 {
            match arrivals.recv_timeout(rounds.patience()) {
                Ok((at, begun)) => {
                    coming -= 1;
                    match begun {
                        Ok(barrier) => drop(standing.insert(at, barrier)),
                        Err(error) => drop(failure.get_or_insert(error)),
                    }
                }
                // What has failed, or takes too long, is waited for as it is.
                Err(_) if failure.is_some() || began.elapsed() > TOGETHER_LIMIT => {}
                Err(_) => {
                    let calls = rounds.begin();
                    for (at, barrier) in std::mem::take(&mut standing) {
                        coming += 1;
                        come(at, Box::new(move || barrier.step(contents, calls)));
                    }
                }
            }
        }
        failure.map_or_else(|| Ok(standing.into_values().collect()), Err)
    })
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
