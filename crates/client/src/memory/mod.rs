//! Memory that the program holds: the client's own map of it answers what is asked about pointers.

mod allocate;
mod host_memory;
mod managed;
mod map;
mod pinned;
mod pointer;
mod pool;
mod pool_memory;
mod register;
mod virtual_memory;

pub use allocate::cuMemGetInfo_v2;
pub use map::{Allocation, Purpose, at, find, forget, note, note_global, note_on, take};
pub use pinned::{allocate, cuMemAllocHost_v2, is_pinned, is_shared, release};
pub use register::cuMemHostRegister_v2;
