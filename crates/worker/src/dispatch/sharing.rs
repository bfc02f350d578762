//! When a program's buffers stop being shared with other programs.

use std::sync::mpsc::Sender;

use super::Dispatcher;

impl Dispatcher {
    /// Ends sharing if that is wished and nothing is under way. Whether requests wait for the GPU.
    pub(super) fn look_at_sharing(&mut self) -> bool {
        let Some(sharing) = &self.sharing else { return false };
        if sharing.is_to_end() && self.client.is_at_rest() && self.client.broken.is_none() {
            let ended = self.end_sharing();
            if let Some(sharing) = &mut self.sharing {
                sharing.tell(&ended);
            }
            return false;
        }
        sharing.is_to_end() || sharing.waits()
    }

    /// Gives a program that shares buffers memory of its own. Where the GPU has not enough left it goes on sharing.
    fn end_sharing(&mut self) -> Result<(), String> {
        let (Some(sharing), Some(journal)) = (&mut self.sharing, &mut self.journal) else { return Ok(()) };
        let ended = sharing.end(&mut self.client, journal);
        self.client.bind_anew();
        ended.map_err(|code| format!("shared buffers could not be copied: {code}"))?;
        sharing.tell(&Ok(()));
        self.forget_sharing();
        Ok(())
    }

    /// As [`Dispatcher::end_sharing`], for a request that cannot wait.
    pub(super) fn end_sharing_for_good(&mut self) {
        if let Err(problem) = self.end_sharing() {
            log::error!("{problem}; should the program write to one of them, it gets an error");
            self.refuse_unsharing(&problem);
            self.forget_sharing();
        }
    }

    fn forget_sharing(&mut self) {
        (self.sharing, self.journal) = (None, None);
        self.client.ahead = false;
        self.client.output.let_go();
    }

    /// Has buffers that are shared become the program's own when nothing is under way.
    pub(crate) fn unshare(&mut self, answer: Sender<Result<(), String>>) {
        match &mut self.sharing {
            Some(sharing) => sharing.leave(answer),
            None => drop(answer.send(Ok(()))),
        }
    }

    /// Whoever waits for buffers of its own is told why that is not waited for.
    pub(crate) fn refuse_unsharing(&mut self, problem: &str) {
        if let Some(sharing) = &mut self.sharing {
            sharing.tell(&Err(problem.to_string()));
        }
    }
}
