//! Copies behind work that GPUs have to do.

use std::sync::Arc;
use std::time::Duration;

use rekindle_device::{Device, Event};

use super::error::{Result, device};

/// How often it is looked whether a GPU has come to its copy.
const LOOK: Duration = Duration::from_micros(200);

/// One of each GPU, by an event behind it.
pub(crate) struct EnqueuedCopies(Vec<(Arc<dyn Device>, Event)>);

impl EnqueuedCopies {
    pub(super) fn new(copies: Vec<(Arc<dyn Device>, Event)>) -> EnqueuedCopies {
        EnqueuedCopies(copies)
    }

    /// Returns when all are made, or are not wanted any more; whether they are made.
    pub(crate) fn wait(&self, is_wanted: impl Fn() -> bool) -> Result<bool> {
        let failed = |code| device("copy its memory behind the program's work")(code);
        for (gpu, event) in &self.0 {
            gpu.bind().map_err(failed)?;
            while !gpu.event_query(*event).map_err(failed)? {
                if !is_wanted() {
                    return Ok(false);
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(true)
    }
}

impl Drop for EnqueuedCopies {
    fn drop(&mut self) {
        for (gpu, event) in &self.0 {
            if let Err(code) = gpu.bind().and_then(|()| gpu.event_destroy(*event)) {
                log::warn!("an event behind a checkpoint's copy stays: {code}");
            }
        }
    }
}
