//! One handle that is mapped for the program's allocations.

use rekindle_device::Memory;

use super::Slab;

#[derive(Debug)]
pub(crate) struct Buffer {
    /// Of the handle, a multiple of the device's granularity.
    pub bytes: u64,
    pub memory: Memory,
    pub content: Content,
    /// The memory is a cache's: others have it mapped too, and it cannot be written to here.
    pub shared: bool,
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
