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
        for fence in self.under_way() {
            if (fence.device, fence.stream) == (device, stream) {
                continue;
            }
            let Some(event) = self.event_behind(fence.ring, fence.end) else { continue };
            if fence.device == device {
                self.context(device)?.device.stream_wait_event(stream, event, 0)?;
            } else {
                self.await_transfers(fence)?;
                self.bind(device)?;
            }
        }
        Ok(())
    }

    /// Waits for all transfers that the program takes to be done.
    pub(crate) fn finish_assumed(&mut self) -> Result<()> {
        let bound = self.bound();
        for fence in self.under_way() {
            self.await_transfers(fence)?;
        }
        self.waiting.assumed.told.clear();
        self.bind(bound)
    }

    fn await_transfers(&mut self, fence: TransferFence) -> Result<()> {
        let Some(event) = self.event_behind(fence.ring, fence.end) else { return Ok(()) };
        self.on(fence.device)?.event_synchronize(event)
    }

    /// Those that are not known to be done.
    fn under_way(&mut self) -> Vec<TransferFence> {
        let mut told = std::mem::take(&mut self.waiting.assumed.told);
        told.retain(|fence| !self.are_complete(fence.ring, fence.end));
        self.waiting.assumed.told.clone_from(&told);
        told
    }
}
