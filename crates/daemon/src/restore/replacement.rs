//! A worker in place of one that died before it had loaded all of an image.
//!
//! ```text
//!   worker ── restores, loads, does requests ✕
//!      journal, client's socket: held by the daemon too
//!   another                                  Replace ─ Loaded ─ GoOn (does the journal's requests once more) ──▶
//! ```
//!
//! The program sees a delay: until all is loaded it is told nothing that depends on what a worker alone knows.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use rekindle_protocol::worker::{Phase, ask};
use rekindle_store::Image;

use crate::error::{Error, Result};
use crate::images::preflight;
use crate::restore::loading::{on_clock, wait};
use crate::sandboxes::Sandbox;
use crate::timeline::{Clock, GPU};
use crate::workers::{Worker, gpu_half};

/// What a worker leaves behind that dies.
pub struct RecoveryState {
    /// Its end of the client's socket.
    pub client: UnixStream,
    pub journal: OwnedFd,
    /// The client, as the worker sees it.
    pub pid: i32,
}

/// Puts a worker in the place of a dead one. Returns it, and the phases since that one's death when all is loaded.
pub fn replace(
    sandbox: &Arc<Sandbox>,
    image: &Path,
    dead: &Arc<Worker>,
    recovery: &RecoveryState,
    clock: &Clock,
) -> (Arc<Worker>, Result<Vec<Phase>>) {
    let began_us = clock.elapsed_us();
    let opened = Image::open(image).map_err(Error::from);
    let started = opened.and_then(|image| Ok((sandbox.take_worker_at(dead.slice())?, image)));
    let (worker, image) = match started {
        Ok(started) => started,
        Err(error) => return (dead.clone(), Err(error)),
    };
    worker.set_followed(true);
    // From here on a checkpoint finds this one, and is refused by it.
    worker.set_client(dead.client());
    sandbox.end_worker(dead);
    sandbox.note_workers();
    let phases = bring_up(sandbox, &image, &worker, recovery, clock).map(|phases| {
        let duration_us = clock.elapsed_us() - began_us;
        let (lane, name) = (GPU.to_string(), "a worker replaced".to_string());
        let replaced = Phase { lane, name, start_us: began_us, duration_us, ..Phase::default() };
        [vec![replaced], phases].concat()
    });
    (worker, phases)
}

fn bring_up(
    sandbox: &Sandbox,
    image: &Image,
    worker: &Worker,
    recovery: &RecoveryState,
    clock: &Clock,
) -> Result<Vec<Phase>> {
    let place = (&sandbox.pool, &*sandbox.record().gpu);
    let (status, _held) = preflight::wait_for_room(place, worker, image, worker.status()?)?;
    preflight::check_gpus(image, &status)?;
    let start_us = clock.elapsed_us();
    let restored = gpu_half::replace(worker, image, &sandbox.run_directory)?;
    let loaded = wait(worker)?;
    worker.ask(
        "go on",
        ask::GoOn { pid: recovery.pid },
        &[recovery.client.as_fd(), recovery.journal.as_fd()],
    )?;
    Ok(on_clock([restored, loaded].concat(), start_us))
}
