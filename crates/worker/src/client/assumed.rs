//! Waits for a stream that has nothing but transfers, which are answered before these are done.
//!
//! ```text
//!   upload to stream 1      staging ──▶ GPU memory            event
//!   wait for stream 1       answered at once                    │
//!   launch on stream 2      stream 2 waits on the GPU ◀─────────┘
//! ```
//! Bytes of pageable memory are the program's own again when they are staged, and those that come from the GPU it has when
//! its copy returns. So only work of its other streams can tell whether a transfer is done, and that is made to come after
//! it. Where others could look too, or the order of streams is being recorded, waits wait.

use rekindle_device::{Result, Stream};

use super::Client;
use super::waiting::TransferFence;

#[derive(Default)]
pub(crate) struct AssumedDone {
    /// A stream that has had nothing but transfers since it was idle.
    only_transfers: Option<(usize, Stream)>,
    /// Counts what may have given a stream something to do.
    work: u64,
    /// Transfers that the program takes to be done.
    told: Vec<TransferFence>,
}

impl AssumedDone {
    /// A stream may have got something to do.
    #[inline]
    pub(crate) fn note_work(&mut self) {
        self.work += 1;
        self.only_transfers = None;
    }

    pub(super) fn work(&self) -> u64 {
        self.work
    }

    pub(super) fn only_transfers(&self) -> Option<(usize, Stream)> {
        self.only_transfers
    }

    /// What was noted as work of a stream is a transfer; `before` it, this one had nothing else.
    pub(super) fn note_transfer(&mut self, before: Option<(usize, Stream)>, stream: (usize, Stream)) {
        self.only_transfers = before.filter(|before| *before == stream);
    }

    /// A stream is idle, if nothing was added to this much work.
    pub(super) fn note_idle(&mut self, work: u64, stream: (usize, Stream)) {
        if self.work == work {
            self.only_transfers = Some(stream);
        }
    }
}

impl Client {
    /// Whether the program may take a stream's work to be done, though transfers of it may be under way.
    pub(super) fn is_assumed_done(&mut self, device: usize, stream: Stream) -> bool {
        let of_stream = |fence: &TransferFence| (fence.device, fence.stream) == (device, stream);
        let Some(fence) = self.waiting.behind.filter(of_stream) else { return false };
        if self.waiting.assumed.only_transfers != Some((device, stream))
            || !self.recordings.is_empty()
            || self.ipc.is_used()
            || self.is_broken()
        {
            return false;
        }
        let told = &mut self.waiting.assumed.told;
        told.retain(|before| !of_stream(before));
        told.push(fence);
        true
    }

    /// Has what comes next on a stream come after transfers of others that the program takes to be done.
    #[inline]
    pub(super) fn come_after_assumed(&mut self, device: usize, stream: Stream) -> Result<()> {
        match self.waiting.assumed.told.is_empty() {
            true => Ok(()),
            false => self.come_after_told(device, stream),
        }
    }

    fn come_after_told(&mut self, device: usize, stream: Stream) -> Result<()> {
        self.for_each_told(|client, fence| {
            if (fence.device, fence.stream) == (device, stream) {
                return Ok(());
            }
            if fence.device != device {
                client.await_transfers(fence)?;
                return client.bind(device);
            }
            match client.event_behind(fence.ring, fence.end) {
                Some(event) => client.context(device)?.device.stream_wait_event(stream, event, 0),
                None => Ok(()),
            }
        })
    }

    /// Waits for all transfers that the program takes to be done.
    pub(crate) fn finish_assumed(&mut self) -> Result<()> {
        let bound = self.bound();
        self.for_each_told(Client::await_transfers)?;
        self.waiting.assumed.told.clear();
        self.bind(bound)
    }

    fn await_transfers(&mut self, fence: TransferFence) -> Result<()> {
        let Some(event) = self.event_behind(fence.ring, fence.end) else { return Ok(()) };
        self.on(fence.device)?.event_synchronize(event)
    }

    /// Does a step for each of those that are not known to be done.
    fn for_each_told(
        &mut self,
        mut step: impl FnMut(&mut Client, TransferFence) -> Result<()>,
    ) -> Result<()> {
        let mut told = std::mem::take(&mut self.waiting.assumed.told);
        told.retain(|fence| !self.are_complete(fence.ring, fence.end));
        let done = told.iter().try_for_each(|fence| step(self, *fence));
        self.waiting.assumed.told = told;
        done
    }
}
