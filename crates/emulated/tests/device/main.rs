//! The emulated GPU through the traits that a worker uses.

mod arrays;
mod graphs;
mod kernels;
mod memory;
mod modules;
mod order;
mod streams;
mod support;
