//! A piece of a save or a restore that goes on beside the others.

use std::thread::JoinHandle;

use super::error::{Error, Result};

/// Work of a thread of its own. Whoever lets go of it waits for its end.
pub(super) struct Beside<T>(Option<JoinHandle<Result<T>>>);

impl<T: Send + 'static> Beside<T> {
    pub(super) fn begin(work: impl FnOnce() -> Result<T> + Send + 'static) -> Beside<T> {
        Beside(Some(std::thread::spawn(work)))
    }

    pub(super) fn end(mut self) -> Result<T> {
        let ended = self.0.take().and_then(|thread| thread.join().ok());
        ended.unwrap_or_else(|| Err(Error::Refused("a thread panicked".to_string())))
    }
}

impl<T> Drop for Beside<T> {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}
