//! What is refused, before anything is touched.

use std::sync::Arc;

use rekindle_device::DeviceInfo;
use rekindle_protocol::daemon::{MigrationPath, Mode};
use rekindle_protocol::worker::Status;

use crate::error::Result;
use crate::host::resources::{available_memory, free_space};
use crate::images::machine;
use crate::migration::MigrationError;
use crate::sandboxes::Sandbox;
use crate::workers::{Worker, gpu_half};

use super::{Migration, WANTED};

/// What must stay free beside what moves, on the GPU and on the host.
pub(super) const SPARE: u64 = 64 << 20;

/// The workers that have the GPU halves which are to move to this GPU, and what each has.
pub(super) fn sources(sandbox: &Sandbox, gpu: &str) -> Result<Vec<(Arc<Worker>, Status)>> {
    let record = sandbox.record();
    let name = record.name.clone();
    let refused = |reason: &str| {
        Err(MigrationError::CannotMove { name: name.clone(), reason: reason.to_string() }.into())
    };
    if record.asleep.is_some() {
        return refused("its GPU half sleeps; `rekindle wake` wakes it");
    }
    if record.tenant.is_some() {
        return refused("it shares its context with other programs; stop it and restore it there");
    }
    if record.mode == Mode::Driver {
        return refused("the driver has its GPU half; stop it and restore it there with --gpu-map");
    }
    if record.gpu == gpu {
        return refused(&format!("it runs on {gpu} already"));
    }
    // Of a container's program the engine has the rest.
    sandbox.cpu(WANTED)?;
    let workers = sandbox.serving_workers()?;
    if workers.is_empty() {
        return refused("no process of it uses a GPU through Rekindle, so that there is nothing to move");
    }
    let statuses = gpu_half::each(&workers, |worker| worker.status())?;
    Ok(workers.into_iter().zip(statuses).collect())
}

/// All processes that use the GPU move together: one that has begun to meanwhile would stay behind.
pub(super) fn check_all(of: &Migration<'_>) -> Result<()> {
    let moves = |worker: &Arc<Worker>| of.halves.iter().any(|half| half.source.number() == worker.number());
    match of.sandbox.serving_workers()?.iter().all(moves) {
        true => Ok(()),
        false => Err(MigrationError::CannotMove {
            name: of.sandbox.name(),
            reason: "another process of it has begun to use the GPU meanwhile; try again".to_string(),
        }
        .into()),
    }
}

/// How memory gets there.
pub(super) struct Way {
    pub path: MigrationPath,
    /// The GPUs that the program keeps, by its numbers: what lies there stays where it is, if it goes directly.
    pub stays: Vec<usize>,
}

/// Checks the other GPUs, of which the workers on them have told, against those that the program is on, each against the one at its
/// place. By which way memory goes there, unless the user has said how often it is to be copied.
pub(super) fn check(of: &Migration<'_>, there: &[Status], rounds: Option<u32>) -> Result<Way> {
    let gpu = of.gpu;
    let refused = |reason: String| Err(MigrationError::CannotMove { name: of.sandbox.name(), reason }.into());
    // All halves are on the same GPUs, and so are all workers there.
    let Some((here, there)) = of.halves.first().map(|half| &half.status).zip(there.first()) else {
        return refused("nothing of it is on a GPU".to_string());
    };
    match (here.devices.len(), there.devices.len()) {
        (has, found) if has == found => {}
        (1, found) => return refused(format!("{gpu} is {found} GPUs; name one")),
        (has, found) => {
            return refused(format!(
                "it sees {has} GPUs, and {gpu} is {found}; name as many, each at the place of the one that it is to replace"
            ));
        }
    }
    let (from, to) = (uuids(here), uuids(there));
    let places = 0..from.len();
    let stays: Vec<usize> = places.clone().filter(|place| from[*place] == to[*place]).collect();
    if stays.len() == from.len() {
        return refused(format!("it runs on {gpu} already"));
    }
    for (wanted, found) in machine::gpus(here).iter().zip(&machine::gpus(there)) {
        if (wanted.kind, &wanted.model) != (found.kind, &found.model) {
            return refused(format!(
                "it runs on {}, and {gpu} is {}; name a GPU of the same model",
                wanted.model, found.model
            ));
        }
    }
    // What is mapped is open to all GPUs of the program.
    let moves = |place: &usize| !stays.contains(place);
    let is_reached = |place: usize| there.reaches.iter().all(|reached| reached.contains(&from[place]));
    let is_direct = rounds.is_none() && places.clone().filter(moves).all(is_reached);
    for place in places.clone().filter(|place| !is_direct || moves(place)) {
        let (needed, free) = (of.bytes_on(place) + SPARE, free_on(there, place));
        if free < needed {
            let which = if from.len() == 1 { String::new() } else { format!("'s GPU {place}") };
            return refused(format!(
                "it needs {} MB of GPU memory and {} MB are free on {gpu}{which}; free some, or name another GPU",
                needed >> 20,
                free >> 20
            ));
        }
    }
    if is_direct {
        return Ok(Way { path: MigrationPath::Direct, stays });
    }
    let (needed, free) = (of.bytes() + SPARE, available_memory().min(free_space(&of.daemon.paths.runs)));
    if free < needed {
        return refused(format!(
            "its memory goes through the host's, which takes {} MB, and {} MB are free; free some",
            needed >> 20,
            free >> 20
        ));
    }
    Ok(Way { path: MigrationPath::Host, stays })
}

fn uuids(status: &Status) -> Vec<String> {
    status.devices.iter().map(DeviceInfo::uuid_text).collect()
}

/// How much memory a GPU has free, by its place.
pub(super) fn free_on(status: &Status, place: usize) -> u64 {
    status.free_bytes.get(place).copied().unwrap_or_default()
}
