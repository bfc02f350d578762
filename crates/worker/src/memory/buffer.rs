//! One handle that is mapped for the program's allocations.

use std::sync::Arc;

use rekindle_device::Memory;

use super::Slab;
use crate::ipc::Export;

#[derive(Debug)]
pub(crate) struct Buffer {
    /// Of the handle, a multiple of the device's granularity.
    pub bytes: u64,
    /// None as long as nothing has named it, where memory comes at the [first use](super::first_use).
    pub memory: Option<Memory>,
    pub content: Content,
    /// The memory is a cache's: others have it mapped too, and it cannot be written to here.
    pub shared: bool,
    /// It holds declared data: it cannot be written to here, and others may have the memory too.
    pub declared: Option<Hold>,
    /// By which other processes of the program may have the memory.
    pub export: Option<Arc<Export>>,
    /// The program has freed it, and [others](super::recycling) may take the memory.
    pub is_passed_on: bool,
}

impl Buffer {
    pub(crate) fn is_backed(&self) -> bool {
        self.memory.is_some()
    }
}

/// Whose the memory of declared data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It was made here.
    Own,
    /// It was made by another program.
    Others,
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
