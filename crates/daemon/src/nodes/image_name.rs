//! Images that are there for a migration alone, on either side. They are gone when it is over, or when the next daemon starts.

use std::sync::Arc;
use std::time::Duration;

use crate::daemon::Daemon;
use crate::images::PASSING;

/// How often one that is in use is tried again.
const AGAIN: Duration = Duration::from_millis(500);

pub fn name(id: &str, number: u32) -> String {
    format!("{PASSING}{id}.{number}")
}

/// Removes those of a migration, once nobody reads them any more.
pub fn clear(daemon: &Arc<Daemon>, id: &str) {
    remove_all(daemon, &format!("{PASSING}{id}."));
}

/// Removes all that migrations of an earlier daemon have left.
pub fn clear_all(daemon: &Arc<Daemon>) {
    remove_all(daemon, PASSING);
}

/// Of those that a restored program still loads from, a thread sees to the end.
fn remove_all(daemon: &Arc<Daemon>, prefix: &str) {
    let left = remove_free(daemon, prefix);
    if left {
        let (daemon, prefix) = (daemon.clone(), prefix.to_string());
        std::thread::spawn(move || {
            while remove_free(&daemon, &prefix) {
                std::thread::sleep(AGAIN);
            }
        });
    }
}

/// Whether there are some left that are in use.
fn remove_free(daemon: &Daemon, prefix: &str) -> bool {
    let names = daemon.store.names_with(prefix).unwrap_or_default();
    if names.is_empty() {
        return false;
    }
    let mut left = false;
    for name in names {
        match daemon.store.remove(&name) {
            Err(rekindle_store::Error::ImageInUse { .. }) => left = true,
            Err(rekindle_store::Error::NoImage { .. }) | Ok(()) => {}
            Err(error) => log::error!("an image of a migration stays: {error}"),
        }
    }
    if let Err(error) = daemon.store.collect() {
        log::warn!("what a migration has left in the store stays: {error}");
    }
    left
}
