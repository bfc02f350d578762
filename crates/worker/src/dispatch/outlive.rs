//! A client at rest outlives the context that it shares: its requests wait from the fault on, until it goes on elsewhere.
//!
//! ```text
//!   requests ──done──┬ none, all is done: noted ┬─────── fault ─▶ Quiesced ┄ Leave ─ Save ─ Part ┄▶ another worker
//!                    └ at work ─────────────────┼─────── fault ─▶ Running: mended elsewhere, or the program is told
//!   a request at rest asks the context first ───┘
//! ```
//!
//! A client counts as at rest once it has asked for nothing for a moment and all that it had asked for was seen to have
//! ended well. Its next request ends that: the driver tells of a fault once, and then everybody, so what has been given to
//! it since is not known to have been done.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rekindle_protocol::worker::ContextLost;

use super::activity::Quiesced;
use super::{Activity, DispatchError, Dispatcher};
use crate::client::NoteProgress;
use crate::control::Watchers;
use crate::ondemand::Mend;
use crate::shared::Health;

/// A client that asks for nothing for so long is looked at.
const QUIET: Duration = Duration::from_millis(1);
/// So often at most, while the GPU works for it.
const SELDOM: Duration = Duration::from_millis(20);

pub(crate) struct Outliving {
    health: Arc<Health>,
    /// Who is told what becomes of the client.
    watchers: Watchers,
    at_rest: bool,
    /// What became of it when the context failed.
    lost: Option<ContextLost>,
}

impl Outliving {
    pub(crate) fn new(health: Arc<Health>, watchers: Watchers) -> Outliving {
        Outliving { health, watchers, at_rest: false, lost: None }
    }

    /// Tells who watches; false if nobody does.
    fn tell(&self, lost: ContextLost) -> bool {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |watcher: &OwnedFd| {
            let copy = watcher.try_clone().map(std::fs::File::from);
            copy.and_then(|mut watcher| watcher.write_all(&[lost as u8])).is_ok()
        };
        watchers.retain(told);
        !watchers.is_empty()
    }
}

impl Dispatcher {
    /// Whether the next request may be done. One that ends a rest asks the context first.
    pub(super) fn may_go_on(&mut self) -> bool {
        if self.mend.as_ref().is_some_and(|mend| mend.holds()) {
            return false;
        }
        let Some(outliving) = self.outliving.as_mut().filter(|outliving| outliving.lost.is_none()) else {
            return true;
        };
        if outliving.health.fault().is_some() {
            return false;
        }
        if !outliving.at_rest {
            return true;
        }
        // What it answers with otherwise the request will meet.
        let _ = self.client.gpus.check();
        outliving.at_rest = outliving.health.fault().is_some();
        !outliving.at_rest
    }

    /// Looks, in a quiet moment, whether the client is at rest; until when it is to be looked again.
    pub(super) fn look_for_rest(&mut self, nap: Duration) -> Duration {
        let Some(outliving) = &mut self.outliving else { return nap };
        if outliving.at_rest || outliving.lost.is_some() || !matches!(self.activity, Activity::Running) {
            return nap;
        }
        let quiet = self.quiet_since.elapsed();
        if quiet < QUIET {
            return nap.min(QUIET);
        }
        match self.client.note_rest() {
            Ok(NoteProgress::All) => outliving.at_rest = true,
            Ok(NoteProgress::Some) => return Duration::ZERO,
            Ok(NoteProgress::Nothing) => return nap.min((quiet / 50).clamp(QUIET, SELDOM)),
            Err(code) => log::debug!("what a client would need to outlive its context cannot be had: {code}"),
        }
        nap
    }

    /// Decides what becomes of the client once its context has failed; true if it has just been decided.
    pub(super) fn meets_fault(&mut self) -> bool {
        let Some(outliving) = self.outliving.as_mut().filter(|outliving| outliving.lost.is_none()) else {
            return false;
        };
        let Some(code) = outliving.health.fault() else { return false };
        match self.activity {
            Activity::Running | Activity::Sharing(_) if self.client.board.is_some() => {}
            // It is decided when whoever has brought it to a stand lets it go on.
            Activity::Quiesced(_) | Activity::Replaying(_) => return false,
            // There is no program yet: whoever brings it up hears of the fault by what fails.
            _ => {
                outliving.lost = Some(ContextLost::Told);
                return true;
            }
        }
        let obstacle = match (outliving.at_rest, self.client.obstacle()) {
            (false, _) => Some("it has work there"),
            (true, None) if self.client.loses_globals() => {
                Some("code of it had to be loaded whole, with globals")
            }
            (true, obstacle) => obstacle,
        };
        if obstacle.is_none() && outliving.tell(ContextLost::AtRest) {
            outliving.lost = Some(ContextLost::AtRest);
            self.refuse_drain(DispatchError::Leaving);
            self.client.leave();
            self.activity = Activity::Quiesced(Quiesced { blocks: None, shared: None, behind: false });
            log::info!(
                "{}: it was at rest when its context failed ({code}), and goes on elsewhere",
                self.whose()
            );
            return true;
        }
        outliving.lost = Some(ContextLost::Told);
        if self.mend.as_ref().is_some_and(Mend::is_on) {
            self.client.loses_context(code);
            return true;
        }
        outliving.tell(ContextLost::Told);
        let why = obstacle.unwrap_or("no daemon is there to have it go on elsewhere");
        log::warn!("{}: its context has failed ({code}), and it is told, for {why}", self.whose());
        if self.client.has_unbacked() {
            log::warn!(
                "{}: {} MB that it has allocated had no memory yet; if a kernel of its own has computed an address there from that of another allocation, run it with --share-memory eager or --mend",
                self.whose(),
                self.client.unbacked_bytes() >> 20
            );
        }
        true
    }

    /// Whether it waits to go on elsewhere.
    pub(crate) fn is_leaving(&self) -> bool {
        let lost = self.outliving.as_ref().and_then(|outliving| outliving.lost);
        lost == Some(ContextLost::AtRest) && matches!(self.activity, Activity::Quiesced(_))
    }

    /// It does not go on elsewhere: its program is told. False if it was not to go on elsewhere.
    pub(crate) fn stay(&mut self) -> bool {
        if !self.is_leaving() {
            return false;
        }
        self.client.stay();
        self.activity = Activity::Running;
        if let Some(outliving) = &mut self.outliving {
            outliving.lost = Some(ContextLost::Told);
        }
        log::warn!("{}: it could not go on elsewhere, and is told that its context has failed", self.whose());
        true
    }

    fn whose(&self) -> String {
        let slice = self.client.gpus.regions.slice().map_or(0, |slice| slice.number());
        format!("client {slice}")
    }
}
