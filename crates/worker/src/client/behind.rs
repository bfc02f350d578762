//! A cut that does not wait for the GPU: what the program has asked for counts as done, and a copy of its memory is enqueued behind
//! it ([`crate::image`]).
//!
//! ```text
//!  program    launch ─ launch ─┬ stands still ┬ launch ─ launch ─────────────▶
//!  GPU        ════ kernels ════╪══════════════╪══════╡ copy ╞══ kernels ══════
//!                              └ the image is of here ▲ └─ the program's next work waits for the copy
//! ```

use super::Client;
use crate::dispatch::DispatchError;
use crate::image;
use crate::memory::Mapping;

impl Client {
    /// Why an image has to wait for the GPU; none if a copy can be enqueued behind all that it has to do. The program stands still,
    /// and all of its requests are done.
    pub(crate) fn has_to_wait(&mut self) -> Result<Option<&'static str>, DispatchError> {
        let failed = |code| DispatchError::Context { device: 0, code };
        if let Some(obstacle) = self.obstacle() {
            return Ok(Some(obstacle));
        }
        let is = |found: bool, why| found.then_some(why);
        let why = None
            .or_else(|| is(self.gpus.is_shared(), "it shares its context"))
            .or_else(|| is(self.open_devices().count() != 1, "it has several GPUs"))
            .or_else(|| is(self.has_freed_memory(), "it has freed memory that is to be given back"))
            .or_else(|| is(self.has_unmapped_memory(), "it has memory that is not mapped"))
            .or_else(|| is(self.loses_globals(), "code of it had to be loaded whole, with globals"));
        if why.is_some() {
            return Ok(why);
        }
        let pinned = self.pinned_bytes();
        let why = None
            .or_else(|| {
                is(
                    pinned > 0 && !self.pinned_is_followed,
                    "nobody follows what it writes to its pinned memory",
                )
            })
            .or_else(|| is(pinned > image::MOST_PINNED, "it has much pinned memory"));
        if why.is_some() {
            return Ok(why);
        }
        if self.awaits_times().map_err(failed)? {
            return Ok(Some("it is to know when its events happen"));
        }
        let has_room = image::has_room(self).map_err(failed)?;
        Ok(is(!has_room, "there is no room for a copy of all that it has"))
    }

    /// Addresses, and bytes.
    pub(crate) fn pinned_places(&self) -> Vec<(u64, u64)> {
        self.pinned.iter().map(|pinned| (pinned.address, pinned.bytes)).collect()
    }

    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned.iter().map(|pinned| pinned.bytes).sum()
    }

    fn has_freed_memory(&self) -> bool {
        self.contexts.iter().flatten().any(|context| !context.freed.is_empty())
    }

    /// Handles of the program's own that a save has to map for itself.
    fn has_unmapped_memory(&self) -> bool {
        let memory = &self.virtual_memory;
        memory.physical.keys().any(|serial| {
            let is_it = |mapping: &Mapping| {
                mapping.serial == *serial && mapping.access == rekindle_device::Access::ReadWrite
            };
            !memory.mappings.values().any(is_it)
        })
    }
}
