//! Removing what is no more wanted: ended sandboxes with their logs, and images.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::images::PASSING;
use crate::lifecycle::images;
use crate::server::ServerError;
use crate::services;

/// Removes the ended sandboxes of these names with their logs. A name that only an image has means that, unless just
/// sandboxes are meant. All names are worked on, whatever happens to one.
pub fn remove(daemon: &Daemon, names: &[String], only_sandboxes: bool) -> Result<Value> {
    let images: BTreeSet<String> = match only_sandboxes {
        true => BTreeSet::new(),
        false => daemon.store.images()?.into_iter().map(|image| image.name).collect(),
    };
    let (mut meant, mut freed, mut failures) = (Vec::new(), 0, Vec::new());
    for name in names {
        match (daemon.sandboxes.get(name), images.contains(name)) {
            (Ok(_), true) => failures.push(ServerError::TwoNamed { name: name.clone() }.into()),
            (Err(_), true) => meant.push(name.clone()),
            (Err(_), false) if !only_sandboxes => {
                failures.push(ServerError::UnknownName { name: name.clone() }.into())
            }
            _ => match daemon.sandboxes.forget(name) {
                Ok(bytes) => freed += bytes,
                Err(error) => failures.push(error),
            },
        }
    }
    if !meant.is_empty() {
        match images::remove(daemon, &meant) {
            Ok(removed) => freed += removed["freed_bytes"].as_u64().unwrap_or(0),
            Err(error) => failures.push(error),
        }
    }
    match failures.len() {
        0 => Ok(json!({ "names": names, "freed_bytes": freed })),
        1 => Err(failures.remove(0)),
        _ => Err(Error::Several(failures.iter().map(Error::to_string).collect())),
    }
}

/// Removes all ended sandboxes with their logs, and with `images` the images that no sandbox runs from or
/// may be brought back from, and no service has.
pub fn prune(daemon: &Daemon, images: bool) -> Result<Value> {
    let (sandboxes, mut freed) = daemon.sandboxes.forget_ended();
    let mut removed = Vec::new();
    if images {
        let records = daemon.sandboxes.all().into_iter().map(|sandbox| sandbox.record());
        let mut used: BTreeSet<String> = records.flat_map(|record| record.needs_images()).collect();
        used.extend(services::images(daemon));
        let all = daemon.store.images()?.into_iter().map(|image| image.name);
        // Those of programs that move go by themselves.
        removed.extend(all.filter(|name| !used.contains(name) && !name.starts_with(PASSING)));
        if !removed.is_empty() {
            freed += images::remove(daemon, &removed)?["freed_bytes"].as_u64().unwrap_or(0);
        }
    }
    Ok(json!({ "sandboxes": sandboxes, "images": removed, "freed_bytes": freed }))
}
