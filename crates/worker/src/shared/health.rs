//! Whether the contexts of a process are still good for anything, and who hears of it when they are not.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use rekindle_cuda::CuResult;

use crate::dispatch::Remote;

/// Of all contexts of a process, for a fault ends the process's others too.
#[derive(Default)]
pub(crate) struct Health {
    /// The error that has ended them; 0 as long as none has.
    fault: AtomicI32,
    /// Nobody else is to get them.
    closed: AtomicBool,
    /// Whose clients use them.
    clients: Mutex<Vec<Remote>>,
}

impl Health {
    /// The client whose dispatch this is hears of a fault at once.
    pub(crate) fn tell(&self, client: Remote) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| !client.is_over());
        clients.push(client);
    }

    /// An error has ended them. Only the first one counts.
    pub(crate) fn fail(&self, code: CuResult) {
        self.close();
        let first = self.fault.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if first {
            self.clients.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Remote::wake);
        }
    }

    pub(crate) fn fault(&self) -> Option<CuResult> {
        match self.fault.load(Ordering::Acquire) {
            0 => None,
            code => Some(CuResult(code)),
        }
    }

    /// Nobody is to be given them any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
