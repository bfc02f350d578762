//! What kernels can do to each other and to themselves.

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod linking;
mod matrices;
mod memory;
mod tensors;
mod textures;
mod threads;
