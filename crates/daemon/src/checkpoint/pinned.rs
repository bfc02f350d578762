//! Pinned memory of a program that goes on before its GPU has done what it was given: work of before the cut may still write
//! there, so it is copied behind that, and what the program itself has written by then has no place in the image.
//!
//! ```text
//!  program       ──runs──┬ stands still ┬──runs───────────────────────────▶
//!  GPU           ═ work of before the cut ═══════════════╡ copy ╞═ ...
//!  pinned memory         └ protected ─────────────────────────┴ written? ─ the image is given up
//! ```
//!
//! Then the image is taken once more, and waits for the GPU, as all later ones of this program do.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rekindle_protocol::worker::{Contents, ask};
use rekindle_sandbox::pages::{FollowedMemory, PreCopy};

use crate::error::Result;
use crate::sandboxes::standstill::Standstill;
use crate::workers::Worker;

use super::CheckpointError;
use super::attempt::Attempt;

impl Attempt<'_> {
    /// The program stands still: what it writes to pinned memory is known from now on, where that can be done.
    pub(super) fn follow_pinned(
        &self,
        standing: Option<&Standstill<'_>>,
        pre_copy: Option<&PreCopy>,
    ) -> Result<Vec<FollowedMemory>> {
        let is_of_no_use =
            || self.writes_pinned.is_none_or(|writes_pinned| writes_pinned.load(Ordering::Relaxed));
        let (Some(standing), Some(pre_copy)) = (standing, pre_copy) else { return Ok(Vec::new()) };
        if self.contents() != Contents::Shadowed || is_of_no_use() {
            return Ok(Vec::new());
        }
        let mut followed = Vec::new();
        for (worker, client) in self.workers().iter().zip(standing.clients()) {
            followed.extend(self.follow_pinned_of(worker, self.client_pid(client)?, pre_copy)?);
        }
        Ok(followed)
    }

    fn follow_pinned_of(
        &self,
        worker: &Arc<Worker>,
        host_pid: i32,
        pre_copy: &PreCopy,
    ) -> Result<Option<FollowedMemory>> {
        let places = worker.ask("find its pinned memory", ask::Pinned {}, &[])?;
        if places.is_empty() {
            return Ok(None);
        }
        let spans: Vec<Range<u64>> =
            places.iter().map(|(at, bytes)| *at..at.saturating_add(*bytes)).collect();
        match pre_copy.follow(host_pid, spans, &self.host_pids()) {
            Ok(Some(followed)) => {
                worker.ask("copy pinned memory behind its work", ask::FollowPinned {}, &[])?;
                Ok(Some(followed))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                log::debug!("nobody can tell what process {host_pid} writes to pinned memory: {error}");
                Ok(None)
            }
        }
    }

    /// The program goes on: waits until pinned memory is copied, and fails if the program has written there meanwhile.
    pub(super) fn await_copy(&self, followed: Vec<FollowedMemory>) -> Result<()> {
        if followed.is_empty() {
            return Ok(());
        }
        let mut is_behind = false;
        for worker in self.workers() {
            let action = "wait for the copy behind the program's work";
            is_behind |= worker.ask_within(action, ask::AwaitCopy {}, &[], None)?;
        }
        if !is_behind {
            return Ok(());
        }
        self.step("behind-copied")?;
        let all = self.host_pids();
        let is_unwritten = |memory: &FollowedMemory| memory.is_unwritten(&all).unwrap_or(false);
        if followed.iter().all(is_unwritten) {
            return Ok(());
        }
        self.writes_pinned.into_iter().for_each(|writes_pinned| writes_pinned.store(true, Ordering::Relaxed));
        Err(CheckpointError::PinnedWritten { name: self.subject.name.clone() }.into())
    }

    fn host_pids(&self) -> Vec<i32> {
        self.subject.cpu.pids().into_values().collect()
    }
}
