//! The emulated GPU through the traits that a worker uses.

mod graphs;
mod kernels;
mod memory;
mod modules;
mod streams;
mod support;
