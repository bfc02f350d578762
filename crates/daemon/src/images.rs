//! What the command line shows of images.

use rekindle_store::{Encoding, Store};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::reply::Reply;

pub fn list(store: &Store) -> Result<Value> {
    let images = store.images()?;
    Ok(images
        .into_iter()
        .map(|summary| match summary.state {
            Ok(outline) => json!({
                "name": summary.name,
                "path": summary.path,
                "created": outline.created,
                "mode": outline.mode,
                "command": outline.argv,
                "sizes": outline.sizes,
                "problem": null,
            }),
            Err(problem) => json!({
                "name": summary.name,
                "path": summary.path,
                "created": null,
                "mode": null,
                "command": [],
                "sizes": null,
                "problem": problem,
            }),
        })
        .collect())
}

/// The manifest, with what its chunks come to in place of the chunks.
pub fn inspect(store: &Store, name: &str) -> Result<Value> {
    let image = store.image(name)?;
    let manifest = image.manifest();
    let parts: Vec<Value> = manifest
        .parts
        .iter()
        .map(|part| {
            let kept = part.chunks.iter().filter(|chunk| chunk.encoding != Encoding::Zero);
            json!({
                "kind": part.kind,
                "name": part.name,
                "bytes": part.bytes,
                "chunks": part.chunks.len(),
                "stored": kept.map(|chunk| chunk.stored).sum::<u64>(),
            })
        })
        .collect();
    Ok(json!({
        "name": manifest.name,
        "id": manifest.id,
        "created": manifest.created,
        "mode": manifest.mode,
        "path": image.path(),
        "program": manifest.program,
        "machine": manifest.machine,
        "gpus": manifest.gpus,
        "sizes": manifest.sizes,
        "files": manifest.files,
        "parts": parts,
    }))
}

pub fn verify(store: &Store, name: &str, reply: &Reply<'_>) -> Result<Value> {
    let report = store.verify(name, &|done, total| reply.progress("verify", done, total))?;
    Ok(json!({
        "name": report.name,
        "sound": report.is_sound(),
        "chunks": report.chunks,
        "bytes": report.bytes,
        "problems": report.problems,
    }))
}

/// Removes images, all that can be, and then the chunks that no other image needs.
pub fn remove(store: &Store, names: &[String]) -> Result<Value> {
    let mut failures: Vec<Error> =
        names.iter().filter_map(|name| store.remove(name).err().map(Error::from)).collect();
    let collected = store.collect();
    match failures.len() {
        0 => Ok(json!({ "names": names, "freed_bytes": collected?.bytes })),
        1 => Err(failures.remove(0)),
        _ => Err(Error::Several(failures.iter().map(Error::to_string).collect())),
    }
}
