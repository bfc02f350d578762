//! In which order contents of GPU buffers are loaded, and whether the program's requests run ahead of them.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use rekindle_protocol::daemon::LoadOrder;
use rekindle_protocol::tuning;
use rekindle_protocol::worker::{Recording, RequestProfile, ask};
use rekindle_store::{Image, LoadOrder as Known};
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::restore::RestoreError;
use crate::restore::halves;
use crate::sandboxes::Sandbox;
use crate::workers::Worker;

/// The order to load in, where none is wished.
pub fn usual() -> LoadOrder {
    let Some(wanted) = tuning::word(tuning::LOAD_ORDER) else { return LoadOrder::default() };
    serde_json::from_value(Value::String(wanted.clone())).unwrap_or_else(|_| {
        log::warn!("{} is {wanted:?}, and none, default, profile or worst were expected", tuning::LOAD_ORDER);
        LoadOrder::default()
    })
}

/// Tells a worker how its next restore loads. With `record` it notes what is used first; without, it adds that to the
/// image's order by itself while there is something to learn. Returns its journal.
pub fn tell(worker: &Worker, image: &Image, order: LoadOrder, record: bool) -> Result<OwnedFd> {
    let known = known(image);
    // What the program touches of its own memory is learned with it.
    let pages = image.first_pages().is_ok_and(|pages| pages.is_to_be_learned());
    let record = match (record, known.is_to_be_learned() || pages) {
        (true, _) => Recording::Asked,
        (false, true) => Recording::Learned,
        (false, false) => Recording::None,
    };
    let names = match order {
        LoadOrder::None | LoadOrder::Default => Vec::new(),
        LoadOrder::Profile => known.parts,
        LoadOrder::Worst => known.parts.into_iter().rev().collect(),
    };
    let run_ahead = order != LoadOrder::None;
    // What was not used when the order was recorded would else come after what is needed first.
    let names = if order == LoadOrder::Worst { unused_first(image, names) } else { names };
    let journal = memfd_create("rekindle-journal", MFdFlags::MFD_CLOEXEC)
        .map_err(|errno| Error::system("make a file in memory", errno))?;
    let request = ask::OnDemand { run_ahead, order: names, record };
    worker.ask("learn how to load", request, &[journal.as_fd()])?;
    Ok(journal)
}

/// The order is advice: an image without one, or with a damaged one, is restored all the same.
fn known(image: &Image) -> Known {
    image.load_order().unwrap_or_else(|error| {
        log::warn!("buffers are loaded as the image has them: {error}");
        Known::default()
    })
}

fn unused_first(image: &Image, used: Vec<String>) -> Vec<String> {
    let all = image.parts(rekindle_store::PartKind::GpuBuffer).map(|part| part.name.clone());
    let unused: Vec<String> = all.filter(|name| !used.contains(name)).collect();
    [unused, used].concat()
}

/// Keeps with its image in which order a restored program's requests have named buffers.
pub fn keep(daemon: &Daemon, sandbox: &Sandbox) -> Result<Value> {
    let name = sandbox.name();
    let unknown =
        |reason: &str| RestoreError::NoLoadOrder { name: name.clone(), reason: reason.to_string() }.into();
    let image = sandbox.record().image.ok_or_else(|| unknown("it was not restored from an image"))?;
    let halves = halves::running(sandbox, &daemon.store.image(&image)?)?;
    if halves.is_empty() {
        return Err(unknown("it does not use a GPU"));
    }
    let (mut parts, mut memory): (Vec<String>, Vec<RequestProfile>) = (Vec::new(), Vec::new());
    for (worker, half, prefix) in &halves {
        let used = worker.ask("tell which buffers were used first", ask::Uses {}, &[])?;
        half.set_load_order(&used)?;
        memory.extend(worker.ask("tell what the request needed of memory", ask::Profile {}, &[])?);
        parts.extend(used.iter().map(|part| format!("{prefix}{part}")));
    }
    let shares = daemon.pool.caches.shares();
    Ok(json!({ "name": name, "image": image, "parts": parts, "shares": shares, "memory": memory }))
}
