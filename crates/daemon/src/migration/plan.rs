//! What is refused, before anything is touched.

use std::sync::Arc;

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
    if let Some(status) = statuses.iter().find(|status| status.devices.len() > 1) {
        return refused(&format!(
            "it sees {} GPUs, and only a program with one can move; stop it and restore it there",
            status.devices.len()
        ));
    }
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

/// Checks the other GPU, of which the workers on it have told, against the one that the program is on. By which way memory
/// goes there, unless the user has said how often it is to be copied.
pub(super) fn check(of: &Migration<'_>, there: &[Status], rounds: Option<u32>) -> Result<MigrationPath> {
    let gpu = of.gpu;
    let refused = |reason: String| Err(MigrationError::CannotMove { name: of.sandbox.name(), reason }.into());
    // All halves are on the same GPU, and so are all workers there.
    let Some((here, there)) = of.halves.first().map(|half| &half.status).zip(there.first()) else {
        return refused("nothing of it is on a GPU".to_string());
    };
    if there.devices.len() > 1 {
        return refused(format!("{gpu} is {} GPUs; name one", there.devices.len()));
    }
    if here.gpu_uuid == there.gpu_uuid {
        return refused(format!("it runs on {gpu} already"));
    }
    let (found, wanted) = (machine::gpus(there), machine::gpus(here));
    if let (Some(wanted), Some(found)) = (wanted.first(), found.first())
        && (wanted.kind, &wanted.model) != (found.kind, &found.model)
    {
        return refused(format!(
            "it runs on {}, and {gpu} is {}; name a GPU of the same model",
            wanted.model, found.model
        ));
    }
    let (needed, free) = (of.bytes() + SPARE, there.free_bytes.first().copied().unwrap_or_default());
    if free < needed {
        return refused(format!(
            "it needs {} MB of GPU memory and {} MB are free on {gpu}; free some, or name another GPU",
            needed >> 20,
            free >> 20
        ));
    }
    if rounds.is_none() && there.reaches.contains(&here.gpu_uuid) {
        return Ok(MigrationPath::Direct);
    }
    let free = available_memory().min(free_space(&of.daemon.paths.runs));
    if free < needed {
        return refused(format!(
            "its memory goes through the host's, which takes {} MB, and {} MB are free; free some",
            needed >> 20,
            free >> 20
        ));
    }
    Ok(MigrationPath::Host)
}
