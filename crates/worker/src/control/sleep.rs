//! The worker goes to sleep: it becomes a process that keeps what is to outlive it, or leaves one.

use std::io::Read;
use std::time::Duration;

use rekindle_protocol::client::ToClient;

use super::Control;
use crate::dispatch::{Dispatcher, Ended};
use crate::keeper;

impl Control {
    /// Waits until all halves of the program are ready to sleep; false if one is not, or the daemon has died.
    pub(super) fn may_sleep(&mut self) -> bool {
        let mut word = [0];
        self.to_sleep.take().is_some_and(|mut pipe| pipe.read_exact(&mut word).is_ok())
    }

    /// Gives the GPU back: this process is a keeper then, or has left one, and is done with its client. An error is why it does
    /// not work; the client is then to go on.
    pub(super) fn sleep(&mut self) -> Result<(), String> {
        let Some(client) = self.link.socket() else { return Err("the client has gone".to_string()) };
        let status = self.status().map_err(|error| error.to_string())?;
        self.link.send(&ToClient::Sleep);
        let memory = std::mem::take(&mut self.left);
        let lasting = |dispatcher: &mut Dispatcher| dispatcher.lasting_trace(Duration::ZERO);
        if self.succession.is_asked_for() && self.remote.ask(lasting).is_ok_and(|trace| trace.is_none()) {
            self.hear_no_more();
            match keeper::leave_one(&self.listener, &client, &memory, status.clone()) {
                Ok(pid) => {
                    self.succession.note_keeper(pid);
                    self.remote.end(Ended::Done);
                    return Ok(());
                }
                Err(error) => log::warn!("this worker goes to sleep itself: {error}"),
            }
        }
        Err(keeper::become_one(&self.listener, &client, &memory, status))
    }
}
