//! The atomics that the ring is built on: the processor's, or loom's when the ring is model-checked.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) fn relax() {
    loom::thread::yield_now();
}

#[cfg(not(loom))]
pub(crate) fn relax() {
    std::hint::spin_loop();
}
