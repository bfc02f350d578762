//! A forked child has no GPU: every call returns `CUDA_ERROR_NOT_INITIALIZED`, and the parent's rings and control
//! socket are none of its business.

use std::os::unix::ffi::OsStrExt;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{inherited, session};

static CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked from one that had initialised CUDA.
pub fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Watches for forks from now on.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler makes system calls and stores to atomics only, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    });
}

extern "C" fn child() {
    if let Some(session) = session::forget_in_child() {
        CHILD.store(true, Ordering::Relaxed);
        inherited::let_go(session.directory.as_os_str().as_bytes());
    }
}
