//! Faults: those that the program is told of, and those that are mended before it sees them.

use std::ops::Range;

use rekindle_cuda::CuResult;
use rekindle_protocol::operation::{ReplyHead, name};
use rekindle_ring::Record;

use super::Client;
use crate::shared::ClientDevice;

/// Work runs ahead of loading, or on buffers that are shared, or what it does could be done once more: a fault of it is
/// [mended](crate::ondemand).
pub(crate) struct Mending {
    /// Pinned memory that is to be mapped when all buffers are loaded.
    pub pinned_later: Vec<Range<u64>>,
    /// The fault that was met.
    met: Option<CuResult>,
}

impl Mending {
    pub(crate) fn new(pinned_later: Vec<Range<u64>>) -> Mending {
        Mending { pinned_later, met: None }
    }
}

impl Client {
    /// An operation failed and nobody waits for its answer: the device's next synchronising call reports it.
    pub(crate) fn asynchronous_failure(&mut self, operation: &str, code: CuResult) {
        if self.is_to_be_mended(code) {
            return;
        }
        self.fail_later(self.bound(), operation, code);
    }

    /// As [`Client::asynchronous_failure`], of a device.
    fn fail_later(&mut self, device: usize, operation: &str, code: CuResult) {
        log::warn!("{operation} on device {device} failed: {code}");
        if let Some(board) = self.board {
            board.set_error(device, code.0);
        }
        self.note_fault(device, code);
    }

    /// What waited for its turn on the link has failed when it came: the device's next synchronising call reports it. Called before
    /// the program is told that anything is done, for this may be behind it.
    pub(crate) fn tell_late_failures(&mut self) {
        for device in 0..self.contexts.len() {
            let view = self.contexts[device].as_ref().and_then(|context| context.gpu.view.as_deref());
            if let Some(code) = view.and_then(ClientDevice::take_late)
                && !self.is_to_be_mended(code)
            {
                self.fail_later(device, "work behind a copy", code);
            }
        }
    }

    /// A request that nobody waits for is not done, and the program hears of it as of any that failed.
    pub(crate) fn refuse(&mut self, ring: usize, record: &Record<'_>, code: CuResult) {
        self.abandon(ring, record.opcode, record.body, code);
        self.asynchronous_failure(name(record.opcode).unwrap_or("a request"), code);
    }

    /// Writes down, once, what the device knows about a fault that ended its context.
    pub(crate) fn note_fault(&mut self, device: usize, code: CuResult) {
        if !code.is_sticky() || self.fault.is_some() || self.is_to_be_mended(code) {
            return;
        }
        let words = self.context(device).ok().and_then(|context| context.device.fault());
        let words = words.unwrap_or_else(|| code.to_string());
        log::error!("the context of device {device} has failed: {words}");
        self.fault = Some(words);
        if let Some(board) = self.board {
            board.set_error(device, code.0);
        }
    }

    /// Whether a reply is of a failure, which is then written down before anybody is told.
    pub(crate) fn note_failure(&mut self, device: usize, reply: &[u8]) -> bool {
        let head = reply.get(..ReplyHead::BYTES).map(<[u8; 8]>::try_from);
        let status = head.and_then(|head| head.ok()).map_or(0, |head| ReplyHead::decode(head).status);
        if status != 0 {
            self.note_fault(device, CuResult(status));
        }
        status != 0
    }

    /// Whether this is a fault that is to be mended.
    fn is_to_be_mended(&mut self, code: CuResult) -> bool {
        match self.mending.as_mut().filter(|_| code.is_sticky()) {
            Some(mending) => {
                mending.met.get_or_insert(code);
                true
            }
            None => false,
        }
    }

    /// Whether a fault has ended its context, of which it was told.
    pub(crate) fn has_fault(&self) -> bool {
        self.fault.is_some()
    }

    /// The context that it shares has failed by another client's fault, which is to be mended as one of its own.
    pub(crate) fn loses_context(&mut self, code: CuResult) {
        self.is_to_be_mended(code);
    }

    /// The fault that was met and is to be mended.
    pub(crate) fn broken(&self) -> Option<CuResult> {
        self.mending.as_ref()?.met
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken().is_some()
    }

    /// From now on the program is told of faults, and sees what kernels print.
    pub(crate) fn mend_no_more(&mut self) {
        self.mending = None;
        self.output.let_go();
    }
}
