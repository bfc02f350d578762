//! Machine code for a GPU as something that goes anywhere: prepared once, loaded in pieces, in any order.
//!
//! ```text
//!  fatbin ──unpack──▶ cubin ──prepare──▶ Prepared ──piece(kernel, globals)──▶ a cubin with that kernel
//!                                            ├ kernels: what the driver would say of each
//!                                            └ globals: what a buffer must hold, wherever it lies
//! ```
//! The driver puts a module's globals where it likes, so that a program that keeps their addresses depends on all
//! that was loaded before. Here they become a buffer that somebody else places: code reaches globals through a table
//! of addresses (`.nv.constant4`), linked code by halves of addresses in instructions, both of which relocations fill;
//! [`Prepared::piece`] fills them in and leaves the relocations out. A piece
//! has one kernel and what that can reach, so that it loads as fast as it is small. Each has a bank of the module's user
//! constants for itself ([`Globals::constants`]).
//!
//! What cannot be taken apart so is [`Preparation::Whole`], with the reason. Input is not trusted: what does not make
//! sense is an [`Error`], never a panic, and no size in it is believed before it was compared with the bytes.

mod cubin;
pub mod elf;
mod error;
pub mod fatbin;
mod globals;
mod kernel;
mod notes;
mod piece;
mod prepare;
mod symbols;
mod write;

pub use error::{Error, Result};
pub use globals::{Global, Globals};
pub use kernel::{ATTRIBUTES, Kernel, Limits, Parameter};
pub use prepare::{Preparation, Prepared, Whole, prepare};
pub use symbols::{SYMBOL_OBJECT, Symbol, is_whole, symbols};
