//! Contents of images in pinned host memory and in GPU memory, and on the disk alone.

mod disk;
mod memory;
mod sharing;
mod support;
