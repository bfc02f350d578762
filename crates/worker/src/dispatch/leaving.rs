//! What a client that has ended leaves behind in the process.

use std::time::{Duration, Instant};

use rekindle_ring::{Board, BoardMapping, Ring};

use super::{Activity, Dispatcher};
use crate::client::Client;

/// How often it is looked whether its work has ended.
const LOOK: Duration = Duration::from_micros(200);

/// Memory that it shared with the worker.
pub(crate) struct Mappings {
    rings: Vec<Ring>,
    board: Option<&'static Board>,
}

impl Mappings {
    pub(crate) fn of(client: &Client) -> Mappings {
        Mappings { rings: client.threads.iter().map(|thread| thread.ring).collect(), board: client.board }
    }

    /// # Safety
    /// Nobody uses it any more.
    pub(crate) unsafe fn unmap(self) {
        for ring in self.rings {
            // SAFETY: as the caller promises.
            unsafe { ring.unmap() };
        }
        if let Some(board) = self.board {
            // SAFETY: as above.
            unsafe { BoardMapping::unmap(board) };
        }
    }
}

impl Dispatcher {
    /// Whether work of its program is under way.
    pub(crate) fn works_on(&mut self) -> bool {
        let mut devices = self.client.open_devices();
        devices.any(|device| matches!(self.client.is_idle(device), Ok(false)))
    }

    /// Why what its program had cannot all be given back so that its context serves another one; none if it can: nothing has
    /// failed, nothing of it is somebody else's too or was noted for another worker, and its work ends within the limit.
    pub(crate) fn lasting_trace(&mut self, limit: Duration) -> Option<&'static str> {
        let is = |found: bool, what| found.then_some(what);
        let is_loading = matches!(self.activity, Activity::Loading { .. } | Activity::Replaying(_));
        let lasting = is(is_loading, "its memory was being loaded")
            .or_else(|| is(matches!(self.activity, Activity::Closed), "its memory could not be loaded"))
            .or_else(|| is(self.mend.is_some(), "its loss was to be mended"))
            .or_else(|| self.client.lasting_trace());
        if lasting.is_some() {
            return lasting;
        }
        let until = Instant::now() + limit;
        loop {
            if self.client.is_broken() {
                return Some("its context has failed");
            }
            if self.client.waiting.is_empty() && self.client.is_at_rest() {
                return None;
            }
            if Instant::now() >= until {
                return Some("its work goes on");
            }
            self.client.poll();
            std::thread::sleep(LOOK);
        }
    }
}
