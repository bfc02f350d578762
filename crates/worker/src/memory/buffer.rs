//! One handle that is mapped for the program's allocations.

use std::sync::Arc;

use rekindle_device::Memory;

use super::Slab;
use crate::ipc::Export;

#[derive(Debug)]
pub(crate) struct Buffer {
    /// Of the handle, a multiple of the device's granularity.
    pub bytes: u64,
    pub memory: Memory,
    pub content: Content,
    /// The memory is a cache's: others have it mapped too, and it cannot be written to here.
    pub shared: bool,
    /// By which other processes of the program may have the memory.
    pub export: Option<Arc<Export>>,
}

#[derive(Debug)]
pub(crate) enum Content {
    Large {
        /// As the program asked.
        bytes: u64,
        /// The program has freed it, and its stream has not come that far yet.
        freed: bool,
    },
    Slab(Slab),
}
