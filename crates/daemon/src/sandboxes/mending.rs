//! Programs that do not see the loss of a worker: their workers are had keep what another one would go on from.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use rekindle_protocol::daemon::{Mending as Shown, Mode, State};
use rekindle_store::Store;
use serde::{Deserialize, Serialize};

use super::Sandbox;
use crate::sandboxes::recovery::unix_ms;
use crate::workers::Worker;

/// What is done for a sandbox whose worker was lost.
type Replace = fn(Arc<Sandbox>, Arc<Worker>);
static REPLACE: OnceLock<Replace> = OnceLock::new();

/// Has this done, from now on, when a worker is lost. A daemon is a process, and does one thing then.
pub fn when_workers_are_lost(replace: Replace) {
    REPLACE.get_or_init(|| replace);
}

/// What has come of it, as the record has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mended {
    /// How often a lost worker was replaced.
    pub times: u64,
    /// For how long there was none then.
    pub lost_ms: u64,
}

impl Mended {
    pub fn is_none(&self) -> bool {
        *self == Mended::default()
    }
}

impl Sandbox {
    /// Has each worker that serves a process keep what another one would go on from, if that is wanted. One that loads answers
    /// nothing else meanwhile: who waits for that asks it before.
    pub fn see_to_mending(&self) {
        if !self.wants_mending() {
            return;
        }
        let serves = |worker: &Arc<Worker>| {
            worker.client() != 0 && worker.is_settled() && !worker.is_followed() && worker.held().is_none()
        };
        for worker in self.live_workers().into_iter().filter(serves) {
            let (place, name) = (self.mending_place(&worker), self.name());
            std::thread::spawn(move || keep(&worker, place, &name));
        }
    }

    /// Has a worker keep what another one would go on from, if that is wanted and not so already.
    pub fn keep_mendable(&self, worker: &Worker) {
        if self.wants_mending() {
            keep(worker, self.mending_place(worker), &self.name());
        }
    }

    fn wants_mending(&self) -> bool {
        let record = self.record();
        record.limits.mend.is_some() && record.mode == Mode::Sandbox && record.state == State::Running
    }

    /// Where a worker writes the state of its GPU half: a store, and what names there begin with.
    pub fn mending_place(&self, worker: &Worker) -> (String, String) {
        (self.mending.to_string_lossy().into_owned(), format!("{}.{}", self.id, worker.number()))
    }

    /// Whether another worker is put in the place of one that has ended, and sees to it.
    pub(super) fn replaces(self: &Arc<Sandbox>, worker: &Worker) -> bool {
        let found = self.worker(worker.number());
        let Some((worker, replace)) = found.filter(|worker| worker.held().is_some()).zip(REPLACE.get())
        else {
            return false;
        };
        let sandbox = self.clone();
        std::thread::spawn(move || replace(sandbox, worker));
        true
    }

    /// How it stands, if it is wanted.
    pub fn mending_shown(&self) -> Option<Shown> {
        let record = self.record();
        record.limits.mend.filter(|_| record.mode == Mode::Sandbox)?;
        let Mended { times, lost_ms } = record.mended;
        let standings: Vec<_> =
            self.live_workers().iter().filter_map(|worker| worker.held()?.standing()).collect();
        // Of several the one that is worst off.
        let standing = standings.iter().find(|standing| standing.epoch.is_none()).or(standings.first());
        Some(Shown::new(times, lost_ms, standing.copied(), unix_ms()))
    }

    /// Removes what its workers have written for it.
    pub(super) fn end_mending(&self) {
        forget(&self.mending, &format!("{}.", self.id));
    }
}

fn keep(worker: &Worker, place: (String, String), sandbox: &str) {
    if let Err(error) = worker.keep_mendable(place) {
        log::warn!("the loss of a worker of {sandbox:?} would not be mended: {error}");
    }
}

/// Removes what workers of sandboxes have left that are no more.
pub fn clear(store: &Path, all: &[Arc<Sandbox>]) {
    let names = match store.is_dir() {
        true => Store::open_transient(store).and_then(|store| store.names_with("")).unwrap_or_default(),
        false => return,
    };
    let lives =
        |name: &&String| all.iter().any(|one| one.is_live() && name.starts_with(&format!("{}.", one.id)));
    for name in names.iter().filter(|name| !lives(name)) {
        forget(store, name);
    }
}

/// Removes all of a store whose names begin so.
pub fn forget(store: &Path, beginning: &str) {
    if !store.is_dir() {
        return;
    }
    let removed = Store::open_transient(store).and_then(|store| {
        store.names_with(beginning)?.iter().try_for_each(|name| store.remove(name))?;
        store.collect().map(drop)
    });
    if let Err(error) = removed {
        log::warn!("what lost workers would be mended with stays in {}: {error}", store.display());
    }
}
