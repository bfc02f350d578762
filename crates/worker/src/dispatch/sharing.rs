//! When a program's buffers stop being shared with other programs.

use std::sync::mpsc::Sender;

use super::{Activity, DispatchError, Dispatcher};

impl Dispatcher {
    /// Ends sharing if that is wished and nothing is under way. Whether requests wait for the GPU.
    pub(super) fn look_at_sharing(&mut self) -> bool {
        let Activity::Sharing(shared) = &self.activity else { return false };
        let (ends, waits) = (shared.sharing.is_to_end(), shared.sharing.waits());
        if ends && self.client.is_at_rest() && !self.client.is_broken() {
            if let Err(problem) = self.end_sharing() {
                self.refuse_unsharing(problem);
            }
            return false;
        }
        ends || waits
    }

    /// Gives a program that shares buffers memory of its own. Where the GPU has not enough left it goes on sharing.
    fn end_sharing(&mut self) -> Result<(), DispatchError> {
        let Some(shared) = self.activity.shared_mut() else { return Ok(()) };
        let ended = shared.sharing.end(&mut self.client, &mut shared.journal);
        ended.map_err(DispatchError::Sharing)?;
        shared.sharing.tell(&Ok(()));
        self.forget_sharing();
        Ok(())
    }

    /// As [`Dispatcher::end_sharing`], for a request that cannot wait.
    pub(super) fn end_sharing_for_good(&mut self) {
        if let Err(problem) = self.end_sharing() {
            log::error!("{problem}; should the program write to one of them, it gets an error");
            self.refuse_unsharing(problem);
            self.forget_sharing();
        }
    }

    fn forget_sharing(&mut self) {
        match &mut self.activity {
            Activity::Quiesced(quiesced) => quiesced.shared = None,
            state => *state = Activity::Running,
        }
        self.client.mend_no_more();
    }

    /// Has buffers that are shared become the program's own when nothing is under way.
    pub(crate) fn unshare(&mut self, answer: Sender<Result<(), DispatchError>>) {
        match &mut self.activity {
            Activity::Sharing(shared) => shared.sharing.leave(answer),
            _ => drop(answer.send(self.end_sharing())),
        }
    }

    /// Whoever waits for buffers of its own is told why that is not waited for.
    pub(crate) fn refuse_unsharing(&mut self, problem: DispatchError) {
        if let Some(shared) = self.activity.shared_mut() {
            shared.sharing.tell(&Err(problem));
        }
    }
}
