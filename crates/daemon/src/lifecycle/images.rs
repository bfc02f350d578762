//! Images as the command line has them: shown, verified, removed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rekindle_protocol::worker::ask;
use rekindle_store::{Manifest, PartKind, Store};
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::events;
use crate::images::driver_half::DriverHalf;
use crate::images::metadata::ImageMetadata;
use crate::images::verify::cpu_half;
use crate::images::{PASSING, remove_when_free};
use crate::reply::Reply;
use crate::sandboxes::Sandbox;

/// How much of an archive is read and written at once.
const PIECE: usize = 1 << 20;

/// All images; of those that a program may be brought back from, that program's name.
pub fn list(daemon: &Daemon) -> Result<Value> {
    let (store, caches) = (&daemon.store, &daemon.pool.caches);
    let series: HashMap<String, String> = daemon
        .sandboxes
        .all()
        .into_iter()
        .flat_map(|sandbox| {
            let images =
                sandbox.record().recovery.map(|recovery| recovery.shown().images).unwrap_or_default();
            images.into_iter().map(move |image| (image, sandbox.name()))
        })
        .collect();
    let images: Vec<Value> = store
        .images()?
        .into_iter()
        .filter(|summary| !summary.name.starts_with(PASSING))
        .map(|summary| match summary.state {
            Ok(outline) => json!({
                "series": series.get(&summary.name),
                "name": summary.name,
                "path": summary.path,
                "created": outline.created,
                "mode": outline.mode,
                "command": outline.argv,
                "gpus": outline.gpus,
                "sizes": outline.sizes,
                "shared_bytes": outline.shared,
                "cached_bytes": caches.shown_of(&summary.path),
                "problem": null,
            }),
            Err(problem) => json!({
                "series": series.get(&summary.name),
                "name": summary.name,
                "path": summary.path,
                "created": null,
                "mode": null,
                "command": [],
                "gpus": null,
                "sizes": null,
                "shared_bytes": null,
                "cached_bytes": null,
                "problem": problem,
            }),
        })
        .collect();
    Ok(json!({ "images": images, "caches": caches.shown() }))
}

/// How its modules are loaded, on each worker.
fn code(manifest: &Manifest) -> Vec<&Value> {
    let states = manifest.parts.iter().filter(|part| part.kind == PartKind::WorkerState);
    states.filter_map(|part| part.attributes.get("code")).collect()
}

/// The manifest, with what its chunks come to in place of the chunks.
pub fn inspect(store: &Store, name: &str) -> Result<Value> {
    let image = store.image(name)?;
    let manifest = image.manifest();
    let metadata = ImageMetadata::read(&image);
    let driver = metadata.as_ref().ok().and_then(|metadata| metadata.driver.as_ref());
    let parts: Vec<Value> = manifest
        .parts
        .iter()
        .map(|part| {
            json!({
                "kind": part.kind,
                "name": part.name,
                "bytes": part.bytes,
                "chunks": part.chunks.len(),
                "stored": part.stored(),
                "from": part.origin().map(|origin| origin.image),
            })
        })
        .collect();
    Ok(json!({
        "name": manifest.name,
        "id": manifest.id,
        "created": manifest.created,
        "mode": manifest.mode,
        "framework": metadata.as_ref().is_ok_and(|metadata| metadata.framework),
        "gpu_in_cpu_bytes": driver.map(DriverHalf::bytes),
        "path": image.path(),
        "program": manifest.program,
        "machine": manifest.machine,
        "gpus": manifest.gpus,
        "sizes": manifest.sizes,
        "halves": manifest.halves,
        "code": code(manifest),
        "files": manifest.files,
        "parts": parts,
    }))
}

pub fn verify(store: &Store, name: &str, reply: &Reply<'_>) -> Result<Value> {
    let mut report = store.verify(name, &|done, total| reply.progress("verify", done, total))?;
    report.problems.extend(cpu_half::faults_of(&store.image(name)?));
    Ok(json!({
        "name": report.name,
        "sound": report.is_sound(),
        "chunks": report.chunks,
        "bytes": report.bytes,
        "problems": report.problems,
    }))
}

/// Writes an image as one file.
pub fn export(store: &Store, name: &str, to: OwnedFd, reply: &Reply<'_>) -> Result<Value> {
    let mut to = File::from(to);
    store.export(name, BufWriter::with_capacity(PIECE, &mut to), &|done, total| {
        reply.progress("export", done, total);
    })?;
    // A pipe has nothing to be synced.
    let is_file = to.metadata().is_ok_and(|found| found.is_file());
    if is_file {
        to.sync_data().map_err(|source| Error::system("write the archive", source))?;
    }
    Ok(json!({ "name": name }))
}

/// Takes in an image that is one file.
pub fn import(daemon: &Daemon, from: OwnedFd, name: Option<&str>, reply: &Reply<'_>) -> Result<Value> {
    let from = BufReader::with_capacity(PIECE, File::from(from));
    let progress = |done, total| reply.progress("import", done, total);
    let check = |directory: &Path| cpu_half::faults_in(directory).into_iter().next();
    let image = daemon.store.import(from, name, &check, &progress)?;
    Ok(json!({ "name": image.manifest().name }))
}

/// Gives an image another name.
pub fn tag(store: &Store, name: &str, other: &str) -> Result<Value> {
    store.tag(name, other)?;
    Ok(json!({ "name": other }))
}

/// Removes images, all that can be, and then the chunks that no other image needs.
pub fn remove(daemon: &Daemon, names: &[String]) -> Result<Value> {
    let (store, caches) = (&daemon.store, &daemon.pool.caches);
    let mut freed = 0;
    let mut failures = Vec::new();
    for name in names {
        // What cannot be read can be removed all the same; then it is not known how much that frees.
        let known = store.image(name).map(|image| {
            unshare(daemon, name);
            (store.bytes_of_its_own(&image).unwrap_or(0), image.path().to_path_buf())
        });
        // Nor does anybody fill a cache from it.
        let _still = caches.hold_still();
        match remove_when_free(store, name) {
            Ok(()) => {
                let (bytes, path) = known.unwrap_or_default();
                freed += bytes;
                caches.forget(&path);
                events::tell_of_image("image-removed", name);
            }
            Err(error) => failures.push(Error::from(error)),
        }
    }
    freed += store.collect()?.bytes;
    match failures.len() {
        0 => Ok(json!({ "names": names, "freed_bytes": freed })),
        1 => Err(failures.remove(0)),
        _ => Err(Error::Several(failures.iter().map(Error::to_string).collect())),
    }
}

/// Has programs that share buffers of an image, by which their faults would be mended, have all for themselves.
fn unshare(daemon: &Daemon, image: &str) {
    let of_image =
        |sandbox: &Arc<Sandbox>| sandbox.is_live() && sandbox.record().image.as_deref() == Some(image);
    let workers =
        daemon.sandboxes.all().into_iter().filter(of_image).flat_map(|sandbox| sandbox.live_workers());
    for worker in workers {
        if worker.glance().is_none_or(|status| status.asleep) {
            continue;
        }
        if let Err(error) = worker.ask("have no shared buffers", ask::Unshare {}, &[]) {
            log::warn!("an image stays in use: {error}");
        }
    }
}
