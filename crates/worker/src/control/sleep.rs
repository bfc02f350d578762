//! The worker goes to sleep: it becomes a process that keeps what is to outlive it.

use std::io::Read;

use rekindle_protocol::client::ToClient;

use super::Control;
use crate::keeper;

impl Control {
    /// Waits until all halves of the program are ready to sleep; false if one is not, or the daemon has died.
    pub(super) fn may_sleep(&mut self) -> bool {
        let mut word = [0];
        self.to_sleep.take().is_some_and(|mut pipe| pipe.read_exact(&mut word).is_ok())
    }

    /// Returns only if it does not work, with the reason; the client is then to go on.
    pub(super) fn sleep(&mut self) -> String {
        let Some(client) = self.link.socket() else { return "the client has gone".to_string() };
        let status = match self.status() {
            Ok(status) => status,
            Err(error) => return error.to_string(),
        };
        self.link.send(&ToClient::Sleep);
        let memory = std::mem::take(&mut self.left);
        keeper::become_one(&self.listener, &client, memory, status)
    }
}
