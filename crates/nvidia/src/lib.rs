//! The NVIDIA driver as a device: `libcuda` is found and opened at run time, and nothing links against CUDA.
//!
//! [`NvidiaPlatform::open`] finds the driver ([`search`] says where), starts it and lists the GPUs; a device's
//! context is the primary one, made when it is opened. The handles of [`rekindle_device`] are the driver's own
//! pointers, so that a launch or a copy costs no look-up here:
//!
//! **A [`rekindle_device::Function`], `Stream`, `Event`, `Graph`, `GraphNode`, `GraphExec` or `Memory` that is given
//! to a device must be one that this device gave and that was not destroyed since.** The driver dereferences it.
//! A worker keeps its own table from the program's handles to these, and so never passes on what a program made up.

mod array;
mod context;
mod device;
mod driver;
mod graph;
mod graph_work;
mod imported;
mod jit;
mod memory;
mod modules;
mod parts;
pub mod placement;
mod platform;
mod prepared;
pub mod search;
mod stream;
mod sys;
mod tensor;
mod variables;
mod work;

pub use driver::OpenError;
pub use platform::{NvidiaPlatform, release};
pub use prepared::limits;
pub use sys::{CheckpointLock, CheckpointReserved, CheckpointRestore};
