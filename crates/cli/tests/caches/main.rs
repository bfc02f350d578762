//! Contents of images in pinned host memory and in GPU memory, and on the disk alone.

#[path = "../harness/mod.rs"]
mod harness;

mod disk;
mod memory;
mod sharing;
mod support;
