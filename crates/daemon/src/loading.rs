//! What a restore leaves to be done beside the running program: contents of GPU buffers.
//!
//! The program's requests wait in the worker until they are there. If they cannot be loaded, the program is ended and
//! its sandbox says which image is to blame.

use std::sync::Arc;

use rekindle_protocol::worker::{Phase, Request, Response};
use rekindle_store::Image;

use crate::caches::{Loan, Priority};
use crate::error::{Error, Result};
use crate::held::Held;
use crate::timeline::GPU;
use crate::traces;
use crate::worker::Worker;

/// A worker that loads.
pub struct Rest {
    pub worker: Arc<Worker>,
    /// When its restore began, on the restore's clock.
    pub began_us: u64,
    /// What it may read from caches until it has loaded all.
    pub loan: Loan,
}

/// Waits for the rest on a thread of its own, then sees to what was put off for it: the trace's last phases and the next
/// worker of the pool.
pub fn follow(held: &Arc<Held>, image: &Image, rest: Option<Rest>) {
    let Some(Rest { worker, began_us, loan }) = rest else { return held.fill_pool() };
    let (held, path, image) = (held.clone(), image.path().to_path_buf(), image.manifest().name.clone());
    std::thread::spawn(move || {
        let waited = wait(&worker);
        drop(loan);
        match waited {
            Ok(phases) => {
                let phases = phases.into_iter().map(|phase| Phase {
                    lane: GPU.to_string(),
                    start_us: phase.start_us + began_us,
                    ..phase
                });
                traces::extend(&held.traces, phases);
            }
            // A program that ended takes its worker with it.
            Err(_) if !held.is_live() => {}
            Err(error) => end(&held, &image, &error),
        }
        held.fill_pool();
        held.caches().fill_host(&path, Priority::Restored);
    });
}

fn wait(worker: &Worker) -> Result<Vec<Phase>> {
    let action = "load GPU memory";
    match worker.ask(action, &Request::Loaded, &[], None)? {
        Response::Restored { phases } => Ok(phases),
        other => Err(Error::Worker { action, reason: format!("it answered {other:?}") }),
    }
}

fn end(held: &Held, image: &str, error: &Error) {
    let Ok(cpu) = held.cpu("ended") else { return };
    held.tell(format!("image {image:?} could not be restored, and the program was ended: {error}"));
    if let Err(error) = cpu.kill() {
        log::error!("a program whose GPU memory could not be loaded was not ended: {error}");
    }
}
