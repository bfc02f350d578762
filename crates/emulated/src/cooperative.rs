//! The device functions that cooperative kernels call to synchronise their grid, in PTX.
//!
//! Compilers leave them to a library that only has machine code for this GPU, so the emulated GPU brings its own. The
//! state of the barrier is the module's, which is why cooperative kernels of a device run one at a time.

/// Defines every function of [`NAMES`].
pub(crate) const PTX: &str = include_str!("cooperative.ptx");

/// A module that misses one of these gets [`PTX`] linked in.
pub(crate) const NAMES: [&str; 2] = ["cudaCGGetIntrinsicHandle", "cudaCGSynchronize"];
