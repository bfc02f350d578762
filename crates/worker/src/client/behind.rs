//! A cut that does not wait for the GPU: what the program has asked for counts as done, and a copy of its memory is enqueued behind
//! it ([`crate::image`]).
//!
//! ```text
//!  program    launch ─ launch ─┬ stands still ┬ launch ─ launch ─────────────▶
//!  GPU        ════ kernels ════╪══════════════╪══════╡ copy ╞══ kernels ══════
//!                              └ the image is of here ▲ └─ the program's next work waits for the copy
//! ```

use rekindle_device::{Event, Result as DeviceResult, Stream};
use rekindle_protocol::tuning;

use super::Client;
use super::events::DISABLE_TIMING;
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
        let pinned = self.pinned_bytes();
        let is_unknown = pinned > 0 && !self.pinned_is_followed;
        let why = is(self.has_freed_memory(), "it has freed memory that is to be given back")
            .or_else(|| is(self.has_unmapped_memory(), "it has memory that is not mapped"))
            .or_else(|| is(self.loses_globals(), "code of it had to be loaded whole, with globals"))
            .or_else(|| is(is_unknown, "nobody follows what it writes to its pinned memory"))
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

    /// Whether what there is no room to copy may be written from where it lies while the program runs: not where another process,
    /// whose requests nobody sees here, may write to it.
    pub(crate) fn may_be_guarded(&self) -> bool {
        let has_strangers = self.writes_unnamed || self.ipc.is_used();
        !has_strangers && !tuning::is(tuning::GUARD, "off") && !self.has_unmapped_memory()
    }

    /// Addresses, and bytes.
    pub(crate) fn pinned_places(&self) -> Vec<(u64, u64)> {
        self.pinned.iter().map(|pinned| (pinned.address, pinned.bytes)).collect()
    }

    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned.iter().map(|pinned| pinned.bytes).sum()
    }

    /// The stream that a copy of memory can follow while the program goes on, and its device: it has all that is under way, so
    /// that what comes behind the copy waits for nothing that it would not wait for anyhow. `writes_state`: the state of the GPU
    /// half is to be written too.
    pub(crate) fn stream_to_follow(&mut self, writes_state: bool) -> DeviceResult<Option<(usize, Stream)>> {
        let mut devices = self.open_devices();
        let (Some(device), None) = (devices.next(), devices.next()) else { return Ok(None) };
        let takes_part = self.link.has_calls() || self.work_needs_program();
        if takes_part
            || !self.waiting.is_plain()
            || self.lasting_obstacle().is_some()
            || self.gpus.is_shared()
            || self.has_unmapped_memory()
            || writes_state && (self.has_freed_memory() || self.awaits_times()?)
            || self.loses_globals()
        {
            return Ok(None);
        }
        Ok(self.only_busy_stream(device)?.map(|stream| (device, stream)))
    }

    /// Has the device's stream of copies come after all that a stream has.
    pub(crate) fn follow(&mut self, device: usize, stream: Stream, copies: Stream) -> DeviceResult<()> {
        self.close_batches();
        let mark = self.record(device, stream)?;
        let waited = self.context(device)?.device.stream_wait_event(copies, mark, 0);
        self.give_event(device, mark);
        waited
    }

    /// Has what a stream is given from now on come after an event of the device's stream of copies, where memory is copied that is
    /// to stay until then.
    pub(crate) fn go_on_behind(
        &mut self,
        device: usize,
        stream: Stream,
        (copies, copied): (Stream, Event),
    ) -> DeviceResult<()> {
        let gpu = self.context(device)?.device.clone();
        let kept = gpu.event_create(DISABLE_TIMING)?;
        gpu.event_record(kept, copies, 0)?;
        self.heap(device)?.note_copy(kept);
        gpu.stream_wait_event(stream, copied, 0)?;
        self.waiting.behind = None;
        self.waiting.assumed.note_work();
        let known = self.streams.values_mut().filter(|known| known.device == device);
        let own = self.threads.iter_mut().filter_map(|thread| thread.streams.get_mut(device)?.as_mut());
        known.chain(own).filter(|known| known.handle == stream).for_each(|known| known.busy = true);
        if stream == Stream::LEGACY {
            self.context_mut(device)?.legacy_busy = true;
        }
        Ok(())
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
