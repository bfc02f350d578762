//! Who is told of the end of one of several clients of a process.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rekindle_protocol::worker::ContextLost;

use super::sockets::poll;
use super::{Control, ControlError, Kind};

/// Descriptors of those who want to know of a client's end.
pub(crate) type Watchers = Arc<Mutex<Vec<OwnedFd>>>;

impl Control {
    pub(super) fn watch(&mut self, descriptors: Vec<OwnedFd>) -> Result<(), ControlError> {
        let Kind::Shared(watchers) = &self.kind else {
            return Err("the client's end is that of its worker".into());
        };
        let watchers = watchers.clone();
        // Another daemon than this one was to have it go on elsewhere, and is no more.
        if self.parted.is_none() && !self.leaves && self.stays() {
            for watcher in &descriptors {
                let copy = watcher.try_clone().map(File::from);
                let _ = copy.and_then(|mut watcher| watcher.write_all(&[ContextLost::Told as u8]));
            }
        }
        watchers.lock().unwrap_or_else(PoisonError::into_inner).extend(descriptors);
        Ok(())
    }

    /// Whether nobody is there any more who was told of a client that it may go on elsewhere, as by a daemon that was dying
    /// and had closed its connection already.
    pub(super) fn is_forgotten(&self) -> bool {
        let Kind::Shared(watchers) = &self.kind else { return false };
        let is_gone = |watcher: &OwnedFd| poll(watcher.as_raw_fd(), 0, 0) & libc::POLLERR != 0;
        let nobody = watchers.lock().unwrap_or_else(PoisonError::into_inner).iter().all(is_gone);
        let waits = || self.remote.ask(|dispatcher| dispatcher.is_leaving()).unwrap_or(false);
        nobody && self.parted.is_none() && waits()
    }
}
