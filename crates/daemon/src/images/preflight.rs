//! What is checked before a restore touches anything, so that it either can work or is refused with its reason.

use std::sync::Arc;

use rekindle_protocol::client::{CLIENT_VERSION, OLDEST_CLIENT_VERSION, is_served};
use rekindle_protocol::mounts::Mounts;
use rekindle_protocol::worker::Status;
use rekindle_store::{Gpu, GpuKind, Image, Part, PartKind};

use crate::error::Result;
use crate::host::paths::Paths;
use crate::host::resources::{available_memory, free_space};
use crate::images::machine;
use crate::images::metadata::ImageMetadata;
use crate::images::{ImageError, no_memory};
use crate::pool::{HeldRoom, WorkerPool};
use crate::workers::{Worker, leaving};

/// Memory that a restore needs beside what the program had.
const SPARE_MEMORY: u64 = 64 << 20;
/// So many reasons are told, the last of which may be how many more there are.
const MOST_REASONS: usize = 5;
/// Of what a restore takes of a GPU, such a part more is waited for where it is about to come.
const SPARE_PART: u64 = 8;

/// Checks all that needs no GPU, for a program that will see `mounts`.
pub fn check_machine(paths: &Paths, image: &Image, metadata: &ImageMetadata, mounts: &Mounts) -> Result<()> {
    let mut reasons = Vec::new();
    if metadata.container.is_none() && image.parts(PartKind::CpuFile).next().is_none() {
        reasons.push("it has no CPU half".to_string());
    }
    let pages: u64 = image
        .parts(PartKind::CpuFile)
        .filter(|part| part.name.starts_with("pages-") || part.name.starts_with("layer-"))
        .map(|part| part.bytes)
        .sum();
    let shared: u64 = metadata.clients.iter().flat_map(|client| &client.files).map(|(_, bytes)| bytes).sum();
    let memory = available_memory();
    if memory < pages + shared + SPARE_MEMORY {
        reasons.push(format!(
            "it needs {} MB of memory and {} MB are available; free some",
            (pages + shared + SPARE_MEMORY) >> 20,
            memory >> 20
        ));
    }
    if let Some(client) = metadata.clients.iter().find(|client| !is_served(client.version)) {
        reasons.push(format!(
            "its program has a libcuda.so.1 that speaks version {} of the client's protocol, and this Rekindle \
             versions {OLDEST_CLIENT_VERSION} to {CLIENT_VERSION}; restore it with the Rekindle that took it",
            client.version
        ));
    }
    let room = free_space(&paths.runs);
    if room < shared {
        reasons.push(format!(
            "it needs {} MB in {} and {} MB are free; enlarge that file system or choose another --run-dir",
            shared >> 20,
            paths.runs.display(),
            room >> 20
        ));
    }
    reasons.extend(metadata.inventory.check(mounts).iter().map(ToString::to_string));
    refuse(image, reasons)
}

/// What a user should know of files that the program will find newer than it left them.
pub fn overtaken(metadata: &ImageMetadata, mounts: &Mounts) -> Option<String> {
    let paths = metadata.inventory.overtaken(mounts);
    let (first, more) = (paths.first()?.display(), paths.len() - 1);
    let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
    Some(format!(
        "{first}{more} has been written since the image, and the program reads and writes it: what the program has in \
         memory may not agree; if it is a database, put back the files as they were"
    ))
}

/// A worker's state, again while its GPU has too little room: first while other workers are about to leave some, then while
/// some that [wait](crate::pool) can go. Who begins with just as much as it needs may find it taken by another one, so there
/// is to be more if it can be had. What they gave up is the worker's until the guard is dropped.
pub fn wait_for_room(
    (pool, gpu): (&Arc<WorkerPool>, &str),
    worker: &Worker,
    image: &Image,
    status: Status,
) -> Result<(Status, Option<HeldRoom>)> {
    let needed: Vec<u64> = gpus_bytes(image)?.iter().map(|needed| needed + needed / SPARE_PART).collect();
    let missing = |status: &Status| missing(&needed, status);
    let is_short = |status: &Result<Status>| status.as_ref().is_ok_and(|status| missing(status) > 0);
    let mut status = leaving::wait_while(Ok(status), is_short, || worker.status())?;
    let mut held = None;
    while missing(&status) > 0 && held.get_or_insert_with(|| pool.hold_room(gpu)).give_up(missing(&status)) {
        status = leaving::wait_while(worker.status(), is_short, || worker.status())?;
    }
    Ok((status, held))
}

/// Checks the GPUs that a worker has found against those of the image.
pub fn check_gpus(image: &Image, status: &Status) -> Result<()> {
    let wanted = &image.manifest().gpus;
    let found = machine::gpus(status);
    let mut reasons = Vec::new();
    if found.len() < wanted.len() {
        reasons.push(format!(
            "it needs {} GPUs and this one has {}; give another --gpu",
            wanted.len(),
            found.len()
        ));
    }
    reasons.extend(wanted.iter().zip(&found).filter_map(|(wanted, found)| compare(wanted, found)));
    // A GPU's, if the worker says, else all that it has.
    let free = |place: usize| {
        status
            .free_bytes
            .get(place)
            .copied()
            .unwrap_or_else(|| found.get(place).map_or(0, |gpu| gpu.memory_bytes))
    };
    let needed = gpus_bytes(image)?;
    let needed = needed.iter().copied().zip(&found).take(wanted.len()).enumerate();
    let mut short = needed.filter(|(place, (needed, _))| free(*place) < *needed);
    match short.next().map(|(place, (needed, gpu))| (needed, free(place), gpu.model.clone())) {
        Some((needed, free, gpu)) if reasons.is_empty() => {
            Err(ImageError::NoGpuMemory { image: image.manifest().name.clone(), needed, free, gpu }.into())
        }
        Some((needed, free, gpu)) => refuse(image, [reasons, vec![no_memory(needed, free, &gpu)]].concat()),
        None => refuse(image, reasons),
    }
}

/// Bytes that a worker's GPUs lack of what is needed of each, together; of one of which it does not say what is free, nothing.
pub fn missing(needed: &[u64], status: &Status) -> u64 {
    needed.iter().zip(&status.free_bytes).map(|(needed, free)| needed.saturating_sub(*free)).sum()
}

/// Bytes that an image takes of each of its GPUs: all its halves together, unless each worker has emulated ones of its own.
pub fn gpus_bytes(image: &Image) -> Result<Vec<u64>> {
    let count = image.manifest().gpus.len();
    let is_emulated = image.manifest().gpus.first().is_some_and(|gpu| gpu.kind == GpuKind::Emulated);
    if count < 2 {
        let all = if is_emulated { of_halves(image)?.max().unwrap_or(0) } else { all_gpu_bytes(image)? };
        return Ok(vec![all]);
    }
    let halves = image.halves()?;
    let on = |place: usize| {
        let is_there = |part: &&Part| part.attributes["device"].as_u64().unwrap_or_default() == place as u64;
        let of_half = |half: &Image| -> u64 {
            half.parts(PartKind::GpuBuffer).filter(is_there).map(|part| part.bytes).sum()
        };
        let all = halves.iter().map(of_half);
        if is_emulated { all.max().unwrap_or(0) } else { all.sum() }
    };
    Ok((0..count).map(on).collect())
}

/// How much GPU memory all halves of an image have together.
pub fn all_gpu_bytes(image: &Image) -> Result<u64> {
    Ok(of_halves(image)?.sum())
}

fn of_halves(image: &Image) -> Result<impl Iterator<Item = u64>> {
    Ok(image.halves()?.into_iter().map(|half| half.manifest().sizes.gpu))
}

fn compare(wanted: &Gpu, found: &Gpu) -> Option<String> {
    if wanted.kind != found.kind || wanted.model != found.model {
        return Some(format!(
            "it was taken on {} and this GPU is {}; give another --gpu",
            wanted.model, found.model
        ));
    }
    if wanted.kind == GpuKind::Nvidia && wanted.driver_version != found.driver_version {
        return Some(format!(
            "it was taken with driver {} and this machine has {}; install that driver",
            wanted.driver_version, found.driver_version
        ));
    }
    None
}

fn refuse(image: &Image, mut reasons: Vec<String>) -> Result<()> {
    if reasons.is_empty() {
        return Ok(());
    }
    shorten(&mut reasons);
    Err(ImageError::CannotRestore { image: image.manifest().name.clone(), reason: reasons.join("; ") }.into())
}

/// A program may miss hundreds of files.
fn shorten(reasons: &mut Vec<String>) {
    if reasons.len() > MOST_REASONS {
        let more = reasons.split_off(MOST_REASONS - 1).len();
        reasons.push(format!("and {more} more"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(kind: GpuKind, model: &str, driver: &str) -> Gpu {
        Gpu {
            kind,
            model: model.into(),
            uuid: String::new(),
            memory_bytes: 1 << 30,
            driver_version: driver.into(),
            index: 0,
        }
    }

    #[test]
    fn another_gpu_is_named() {
        let h200 = gpu(GpuKind::Nvidia, "NVIDIA H200", "580.1");
        assert_eq!(compare(&h200, &h200), None);
        let reason = compare(&h200, &gpu(GpuKind::Nvidia, "NVIDIA A100", "580.1")).unwrap();
        assert!(reason.contains("H200") && reason.contains("A100"), "{reason}");
        let reason = compare(&h200, &gpu(GpuKind::Nvidia, "NVIDIA H200", "570.2")).unwrap();
        assert!(reason.contains("580.1") && reason.contains("570.2"), "{reason}");
    }

    #[test]
    fn a_few_reasons_are_told_and_how_many_more_there_are() {
        let shown = |count: usize| {
            let mut reasons: Vec<String> = (1..=count).map(|number| number.to_string()).collect();
            shorten(&mut reasons);
            reasons.join("; ")
        };
        assert_eq!(shown(5), "1; 2; 3; 4; 5");
        assert_eq!(shown(6), "1; 2; 3; 4; and 2 more");
    }

    #[test]
    fn the_emulated_driver_may_differ() {
        let old = gpu(GpuKind::Emulated, "Emulated", "0.1.0");
        assert_eq!(compare(&old, &gpu(GpuKind::Emulated, "Emulated", "0.2.0")), None);
    }
}
