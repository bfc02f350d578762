//! A GPU half that sleeps: what is known of it, and removing it.

use std::path::{Path, PathBuf};

use rekindle_protocol::client::Quiesced;
use rekindle_protocol::daemon::Level;
use rekindle_store::Store;
use serde::{Deserialize, Serialize};

use crate::images::remove_when_free;
use crate::sandboxes::Sandbox;

/// A GPU half that sleeps, as the record has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SleepingGpu {
    pub level: Level,
    /// The store that it lies in, under the sandbox's id.
    pub store: PathBuf,
    pub image: PathBuf,
    pub client: Quiesced,
    /// The client, as the daemon sees it.
    pub pid: i32,
    pub bytes: u64,
    /// The other processes whose GPU halves sleep with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<SleepingProcess>,
}

/// A process whose GPU half sleeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SleepingProcess {
    pub client: Quiesced,
    pub pid: i32,
}

impl SleepingGpu {
    /// All processes whose GPU halves sleep.
    pub fn processes(&self) -> Vec<SleepingProcess> {
        let first = SleepingProcess { client: self.client.clone(), pid: self.pid };
        std::iter::once(first).chain(self.others.iter().cloned()).collect()
    }

    /// What of it sleeps on where only these processes do; none if there are none.
    pub fn of(&self, pids: &[i32]) -> Option<SleepingGpu> {
        let mut left = self.processes().into_iter().filter(|process| pids.contains(&process.pid));
        let SleepingProcess { client, pid } = left.next()?;
        Some(SleepingGpu { client, pid, others: left.collect(), ..self.clone() })
    }
}

/// Removes what a sandbox that is no more has left asleep.
pub fn end(sandbox: &Sandbox) {
    if let Some(asleep) = sandbox.record().asleep {
        sandbox.end_waker();
        forget(&asleep.store, &sandbox.id);
    }
}

/// Removes it from its store.
pub fn forget(root: &Path, id: &str) {
    // A worker may register it just now.
    let removed = Store::open(root).and_then(|store| match remove_when_free(&store, id) {
        Err(rekindle_store::Error::NoImage { .. }) => Ok(()),
        other => other.and_then(|()| store.collect().map(drop)),
    });
    if let Err(error) = removed {
        log::warn!("what slept in {} stays there: {error}", root.display());
    }
}
