//! A program that is not to see the loss of its worker.

use std::time::Duration;

use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_protocol::operation::ReplyHead;
use rekindle_ring::Record;

use super::{Activity, Dispatcher, Ended};
use crate::ondemand::{Journal, Mend};

impl Dispatcher {
    /// Where what is done of requests is noted, if it could be done once more.
    pub(super) fn journal(&mut self) -> Option<&mut Journal> {
        match self.mend.as_mut().and_then(Mend::journal) {
            Some(journal) => Some(journal),
            None => self.activity.journal(),
        }
    }

    /// Begins anew what would be mended with, if that is due. When to look again.
    pub(super) fn look_at_mend(&mut self, is_quiet: bool) -> Option<Duration> {
        if !matches!(self.activity, Activity::Running) {
            return None;
        }
        let next = self.next_request();
        let attached = self.client.driver_attached;
        let mend = self.mend.as_mut()?;
        mend.note_attached(attached);
        mend.look(&mut self.client, next, is_quiet)
    }

    /// A request is done, with this answer if it has one by now.
    pub(super) fn note_done(&mut self, ring: usize, record: &Record<'_>, answer: Option<&[u8]>) {
        if let Some(mend) = self.mend.as_mut().filter(|_| !self.client.is_broken()) {
            mend.done(&mut self.client, ring, record, answer);
        }
    }

    /// Whether GPU memory that the program lacks was given back, so that the request is to be done again.
    pub(super) fn gives_way(&mut self, answer: &[u8]) -> bool {
        let head = answer.get(..ReplyHead::BYTES).and_then(|head| head.try_into().ok());
        let lacks = head.is_some_and(|head| ReplyHead::decode(head).status == CUDA_ERROR_OUT_OF_MEMORY.0);
        lacks && self.mend.as_mut().is_some_and(|mend| mend.give_way(&mut self.client))
    }

    /// Whether its context was lost and another worker mends that.
    pub(crate) fn is_mended_elsewhere(&self) -> bool {
        self.lost_context().is_some()
    }

    /// How the worker ends whose context was lost, if another one mends that.
    pub(super) fn lost_context(&self) -> Option<Ended> {
        let code = self.client.broken()?;
        self.mend.as_ref().filter(|mend| mend.is_on()).map(|_| {
            Ended::Failed(format!(
                "the program's GPU context was lost ({code}): another worker does once more what it asked for"
            ))
        })
    }
}
