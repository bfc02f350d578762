//! Learning which buffers programs restored from an image leave as they are: later instances can share those.
//!
//! The GPU hashes all buffers of a running program and compares them with the image, 4 GB in a few milliseconds. A request
//! like that before the image was taken writes what is there already, which hashes do not show; so a program that is there
//! to learn from has its buffers marked first (`rekindle profile`). What is learned is advice: an instance that writes to
//! such a buffer all the same gets a copy of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use rekindle_protocol::worker::ask;
use rekindle_store::Image;
use serde_json::{Value, json};

use crate::caches::Priority;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::restore::RestoreError;
use crate::restore::halves;
use crate::sandboxes::Sandbox;
use crate::workers::Worker;

/// How often it is looked whether a restored program has done something and rests.
const LOOK: Duration = Duration::from_millis(300);
/// How often it is looked whether a program still shares buffers.
const LOOK_AT_SHARING: Duration = Duration::from_secs(1);
/// How long after a restore.
const PATIENCE: Duration = Duration::from_secs(600);
/// Requests to the worker that a program's first work makes at least.
const SOME: u64 = 3;
/// A program that has not rested for so many looks is looked at while it works.
const MOST_LOOKS: u32 = 10;

/// Waits until the program shares no buffers any more.
fn follow_sharing(sandbox: &Sandbox, worker: &Worker, path: &Path) -> bool {
    while sandbox.is_live() && worker.ended().is_none() {
        std::thread::sleep(LOOK_AT_SHARING);
        let Some(status) = worker.glance() else { continue };
        if status.asleep {
            return false;
        }
        if status.shared_bytes == 0 {
            let Ok(image) = Image::open(path) else { return false };
            let before = image.unwritten().ok().flatten().map(|names| names.len());
            let learned = learn(worker, &image, true).ok().flatten();
            // It has written what was there before, who knows where: sharing would meet that fault again and again.
            if status.mended && learned.is_none_or(|learned| before == Some(learned)) {
                return image.set_unwritten(&[]).is_ok();
            }
            return learned.is_some();
        }
    }
    false
}

/// Asks the worker which of the image's buffers still hold what it has, and keeps with it those that no program was seen
/// to write to before. Their number; none if finding out would have taken long and is to be cheap.
fn learn(worker: &Worker, image: &Image, cheaply: bool) -> Result<Option<usize>> {
    unwritten(worker, image, cheaply)?
        .map(|names| image.learn_unwritten(&names).map_err(Error::from))
        .transpose()
}

/// What is to be known of a program that was marked, whose errors are none of its own.
const MARKED: &str =
    "`rekindle profile` changed its GPU memory to see what it writes to; its results mean nothing";

/// Changes the buffers of a program that is there to learn from: what is written to them then is seen.
pub fn mark(sandbox: &Sandbox) -> Result<Value> {
    sandbox.cpu("profiled")?;
    let workers = sandbox.serving_workers()?;
    if workers.is_empty() {
        return Err(unknown(sandbox, "it does not use a GPU"));
    }
    workers.iter().try_for_each(|worker| worker.ask("mark buffers", ask::Mark {}, &[]))?;
    sandbox.report_problem(MARKED.to_string());
    Ok(json!({ "name": sandbox.name() }))
}

/// Keeps with its image which marked buffers a program has not written to.
pub fn keep(daemon: &Daemon, sandbox: &Sandbox) -> Result<Value> {
    let image =
        sandbox.record().image.ok_or_else(|| unknown(sandbox, "it was not restored from an image"))?;
    let halves = halves::running(sandbox, &daemon.store.image(&image)?)?;
    if halves.is_empty() {
        return Err(unknown(sandbox, "it does not use a GPU"));
    }
    let mut all: Vec<String> = Vec::new();
    for (worker, half, prefix) in &halves {
        let names = unwritten(worker, half, false)?
            .ok_or_else(|| unknown(sandbox, "a process of it did nothing on its GPU"))?;
        half.set_unwritten(&names)?;
        all.extend(names.iter().map(|name| format!("{prefix}{name}")));
    }
    let (pool, gpu) = (daemon.pool.clone(), sandbox.record().gpu);
    std::thread::spawn(move || {
        halves.iter().for_each(|(_, half, _)| pool.fill_caches(half.path(), &gpu, Priority::Made));
    });
    Ok(json!({ "name": sandbox.name(), "unwritten": all }))
}

fn unknown(sandbox: &Sandbox, reason: &str) -> Error {
    RestoreError::NotLearned { name: sandbox.name(), reason: reason.to_string() }.into()
}

fn unwritten(worker: &Worker, image: &Image, cheaply: bool) -> Result<Option<Vec<String>>> {
    let action = "tell which buffers were not written to";
    let image = image.path().to_string_lossy().into_owned();
    worker.ask(action, ask::Unwritten { image, cheaply }, &[])
}

/// Learns from a restored program once it rests after its first work, unless that was learned before. True if it was now.
/// From one that shares buffers it learns once that has ended, perhaps because it wrote to one. The image may be removed
/// meanwhile.
pub fn follow(sandbox: &Sandbox, worker: &Worker, path: &Path, shares: bool) -> bool {
    if shares {
        return follow_sharing(sandbox, worker, path);
    }
    let is_known = |image: Image| !matches!(image.unwritten(), Ok(None));
    if Image::open(path).map_or(true, is_known) {
        return false;
    }
    let (began, mut last, mut looks) = (Instant::now(), 0, 0);
    while began.elapsed() < PATIENCE && sandbox.is_live() && worker.ended().is_none() {
        std::thread::sleep(LOOK);
        let Some(status) = worker.glance().filter(|status| !status.asleep) else { continue };
        looks += u32::from(status.operations >= SOME);
        if status.operations < SOME || status.operations != last && looks < MOST_LOOKS {
            last = status.operations;
            continue;
        }
        let Ok(image) = Image::open(path) else { return false };
        return match learn(worker, &image, true) {
            Ok(learned) => learned.is_some(),
            Err(error) => {
                log::debug!("which buffers stay as they are was not learned: {error}");
                false
            }
        };
    }
    false
}
