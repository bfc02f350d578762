//! What is done while the program still runs, so that it need not be while it stands still; side by side, as far as one does
//! not change what another looks at.
//!
//! ```text
//!  GPU half    release ─────────┬ code, memory written ahead
//!  CPU pages   protect ─ copy ──┼ what was written meanwhile
//!  CPU half    mapped files     └ CRIU is made ready
//! ```
//!
//! Release and protection change mappings, of which CRIU's helper learns when CRIU is made ready. The longer that is before the
//! stop, the more of them has changed by then: of a program without a last image it comes after all is copied.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rekindle_protocol::tuning;
use rekindle_protocol::worker::ask;
use rekindle_sandbox::pages::PreCopy;
use rekindle_sandbox::{DumpSpec, KnownFiles, Prepared, connected, core_files};
use rekindle_store::Draft;

use crate::error::Result;
use crate::timeline::{CPU, GPU};
use crate::workers::{Worker, gpu_half};

use super::attempt::{Attempt, Gpu};
use super::gather::Done;

/// How long a program is waited for whose GPU always has something to do: longer than most steps of a training run.
const MOMENT_LIMIT: Duration = Duration::from_millis(500);
const ANSWER_SLACK: Duration = Duration::from_secs(2);

impl Attempt<'_> {
    /// Has both halves ready for the stop; what was copied ahead, and CRIU.
    pub(super) fn get_ready(
        &self,
        draft: &Draft,
        scratch: &Path,
        spec: &mut DumpSpec<'_>,
    ) -> Result<(Option<PreCopy>, Prepared)> {
        let (released, has_failed) = (OnceLock::new(), AtomicBool::new(false));
        let (pre_copy, prepared) = std::thread::scope(|scope| {
            let gpu = scope.spawn(|| {
                self.release_driver(Done(&released));
                self.write_ahead(draft).inspect_err(|_| has_failed.store(true, Ordering::Relaxed))
            });
            scope.spawn(|| self.known_files());
            // CRIU writes there, too.
            scope.spawn(|| core_files::make(scratch, &self.subject.cpu.pids()));
            let goes_on = || !has_failed.load(Ordering::Relaxed);
            let copied = self.protect(scratch).and_then(|pre_copy| {
                spec.ahead = pre_copy.is_some();
                let spec = &*spec;
                scope.spawn(|| self.earlier_pages.get_or_init(|| self.read_earlier()));
                // The last image has most of it.
                let is_short = self.last_links.get().is_some();
                let prepared = is_short.then(|| {
                    let released = &released;
                    scope.spawn(move || {
                        released.wait();
                        self.prepare(spec)
                    })
                });
                pre_copy.iter().try_for_each(|pre_copy| self.copy_ahead(pre_copy, &goes_on))?;
                let prepared = prepared.map(|thread| {
                    released.wait();
                    self.copy_again(pre_copy.as_ref());
                    thread.join().unwrap_or_default()
                });
                Ok((pre_copy, prepared))
            });
            // Its failure ends the copying.
            gpu.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(copied)
        })?;
        let prepared = prepared.unwrap_or_else(|| {
            let prepared = self.prepare(spec);
            self.copy_again(pre_copy.as_ref());
            prepared
        });
        Ok((pre_copy, prepared))
    }

    /// What is known of the files that the program has mapped.
    pub(super) fn known_files(&self) -> &KnownFiles {
        self.known_files.get_or_init(|| self.subject.cpu.known_files())
    }

    /// Takes the driver's half out of the program while that runs. What cannot be taken so is when it stands still.
    fn release_driver(&self, _released: Done<'_>) {
        let processes: Vec<_> = self.subject.cpu.pids().into_iter().collect();
        let release = |worker: &Arc<Worker>| gpu_half::release(worker, &processes, self.timeline);
        if let Err(error) = gpu_half::each(self.workers(), release) {
            log::warn!("the driver is detached while the program stands still: {error}");
        }
    }

    /// Has CRIU made ready while the program runs, with the sockets outside of it that its clients are likely to name.
    fn prepare(&self, spec: &DumpSpec<'_>) -> Prepared {
        if matches!(self.gpu, Gpu::Driver) {
            return Prepared::default();
        }
        let workers: Vec<_> = self.workers().iter().map(|worker| worker.pid()).collect();
        let program: Vec<_> = self.subject.cpu.pids().into_values().collect();
        let external_sockets = connected(&program, &workers).unwrap_or_default();
        let spec = DumpSpec { external_sockets, ..spec.clone() };
        self.timeline.lane(CPU).time("prepare", || self.subject.cpu.prepare(&spec))
    }

    /// A program that goes on is stopped when its GPUs have nothing to do, if that is so soon: they would have to end that before
    /// their memory is copied.
    pub(super) fn await_moment(&self) {
        let [worker] = self.workers() else { return };
        if !self.request.leave_running || tuning::is(tuning::MOMENT, "off") {
            return;
        }
        let ask = ask::AwaitMoment { limit_ms: MOMENT_LIMIT.as_millis() as u64 };
        let limit = Some(MOMENT_LIMIT + ANSWER_SLACK);
        let asked = || worker.ask_within("wait until its GPU has nothing to do", ask, &[], limit);
        if let Err(error) = self.timeline.lane(GPU).time("wait for a moment", asked) {
            log::warn!("the program is stopped whatever its GPU has to do: {error}");
        }
    }
}
