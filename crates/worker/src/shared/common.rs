//! What the clients of shared contexts have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rekindle_device::Result;

use crate::gpu::Opened;
use crate::gpus::Gpus;
use crate::image::{Shelf, stock};

pub(crate) struct Common {
    pub gpus: Gpus,
    /// What contents are copied through.
    pub shelf: Arc<Shelf>,
    failed: Arc<AtomicBool>,
}

impl Common {
    /// The first GPU's context is made now.
    pub(super) fn new(opened: Opened) -> Result<Arc<Common>> {
        let gpus = Gpus::new(opened)?;
        let shelf = Shelf::new(gpus.open(0)?.device.clone());
        stock(&shelf);
        Ok(Arc::new(Common { gpus, shelf, failed: Arc::default() }))
    }

    /// Raised once one of the contexts turns out to have failed.
    pub(crate) fn failed(&self) -> Arc<AtomicBool> {
        self.failed.clone()
    }

    /// Nobody is to be given these contexts any more: one has failed, or has work that does not end.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}
