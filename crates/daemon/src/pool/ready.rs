//! What a worker does before it counts as waiting, and then for its image.

use std::path::Path;
use std::sync::Arc;

use rekindle_protocol::worker::ask;

use super::wants::{ImageKey, Want};
use super::{Spare, WorkerPool};
use crate::error::Error;
use crate::workers::Worker;

impl WorkerPool {
    /// More is known of an image, or it matters more: what waits for it is to be cached as that says.
    pub fn look_again(self: &Arc<WorkerPool>, image: &Path) {
        let waits =
            |spare: &&Spare| spare.ready && spare.want.image.as_ref().is_some_and(|key| key.path == image);
        let spares: Vec<_> = self
            .lock()
            .spares
            .iter()
            .filter(waits)
            .map(|spare| (spare.worker.clone(), spare.want.clone()))
            .collect();
        for (worker, want) in spares {
            let pool = self.clone();
            std::thread::spawn(move || pool.prepare_caches(&worker, &want));
        }
    }

    pub(super) fn get_ready(self: &Arc<WorkerPool>, worker: &Arc<Worker>, want: &Want) {
        let ready = worker.status().and_then(|_| match &want.image {
            Some(ImageKey { path, in_memory, .. }) => {
                let (image, register) = (path.to_string_lossy().into_owned(), *in_memory);
                worker.ask("load an image's modules", ask::Prepare { image, register }, &[])
            }
            None => Ok(()),
        });
        let mut state = self.lock();
        if ready.is_err() && want.image.is_some() {
            state.wants.retain(|known| known != want);
        }
        let found = state.spares.iter_mut().find(|spare| Arc::ptr_eq(&spare.worker, worker));
        match (ready, found) {
            (Ok(()), Some(spare)) => {
                spare.ready = true;
                drop(state);
                self.tend();
                self.prepare_caches(worker, want);
            }
            (Err(Error::WorkerEnded { how, .. }), _) => log::warn!("a worker that was to wait ended: {how}"),
            (Err(error), Some(_)) => {
                log::warn!("a worker that was to wait did not get ready: {error}");
                drop(state);
                worker.shut_down();
            }
            _ => {}
        }
    }

    /// Has the worker know, and fill, what caches may have of its image, for as long as it waits.
    fn prepare_caches(&self, worker: &Arc<Worker>, want: &Want) {
        let Some(image) = &want.image else { return };
        let waits = || self.lock().spares.iter().any(|spare| Arc::ptr_eq(&spare.worker, worker));
        match self.caches.prepare(worker, &image.path, &want.gpu, waits) {
            Err(error) if waits() => log::warn!("an image is not cached whole: {error}"),
            _ => {}
        }
    }
}
