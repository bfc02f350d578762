//! The worker that waits for a GPU half which sleeps in memory of the host, and has that memory known to its GPU.
//!
//! As those of the pool it ends with this daemon until the sandbox takes it. It holds a context on a GPU that the program
//! gave back, so it waits for one sandbox at a time ([`Daemon::start_waker`](crate::daemon::Daemon::start_waker)).

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rekindle_protocol::worker::ask;

use super::Sandbox;
use crate::workers::Worker;

#[derive(Default)]
pub(super) struct Waker(Mutex<Option<Waiting>>);

struct Waiting {
    worker: Arc<Worker>,
    /// It has begun to make the memory known.
    ready: bool,
}

impl Sandbox {
    /// Has a worker wait for what lies in this image.
    pub fn start_waker(self: &Arc<Sandbox>, image: &Path) {
        if self.pool.is_off() {
            return;
        }
        let worker = match self.pool.spares.start(&self.record().gpu, Box::new(|_| ())) {
            Ok(worker) => worker,
            Err(error) => return log::warn!("no worker waits for {:?} to wake: {error}", self.name()),
        };
        self.pool.note_waker(&self.record().gpu, &worker);
        *self.lock_waker() = Some(Waiting { worker: worker.clone(), ready: false });
        let (sandbox, image) = (self.clone(), image.to_string_lossy().into_owned());
        std::thread::spawn(move || {
            let registers = worker.ask("register what sleeps", ask::Register { image }, &[]);
            let mut place = sandbox.lock_waker();
            let Some(waiting) = place.as_mut().filter(|waiting| Arc::ptr_eq(&waiting.worker, &worker)) else {
                return;
            };
            match registers {
                Ok(()) => waiting.ready = true,
                Err(error) => log::warn!("no worker waits for {:?} to wake: {error}", sandbox.name()),
            }
        });
    }

    /// It, if it has come so far.
    pub fn take_waker(&self) -> Option<Arc<Worker>> {
        let Waiting { worker, ready } = self.lock_waker().take()?;
        let is_there = self.pool.take_waker(&worker) && ready;
        if !is_there {
            worker.kill();
        }
        is_there.then_some(worker)
    }

    /// Ends it, and gives back what it has pinned.
    pub fn end_waker(&self) {
        if let Some(worker) = self.take_waker() {
            worker.kill();
        }
    }

    fn lock_waker(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.waker.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
