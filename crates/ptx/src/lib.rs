//! PTX on the CPU: the instruction half of the emulated GPU.
//!
//! A [`Module`] is PTX text parsed, checked, linked and decoded. A [`Grid`] is one validated launch of one of
//! its kernels; any number of threads run its blocks. [`write_sets`] tells of any text what its kernels may write to.
//!
//! ```text
//!  text ──lexer──▶ tokens ──parser──▶ Ast ──lower──▶ Program ──machine──▶ memory
//!                                      ▲               (decoded instructions, operands as
//!                          other modules: link          rows of 32 lanes)
//! ```
//!
//! Invariants:
//! - A module that parses holds only instructions the machine runs; anything else is refused at load, with its
//!   name and line.
//! - Device addresses are addresses of this process. Kernels reach memory only inside the ranges given to
//!   [`Grid::new`], and a page there that is unmapped or read-only ends the grid with a [`Fault`], provided
//!   [`install_fault_handler`] was called.
//! - A register holds its value zero-extended to 64 bits, for each of a warp's 32 lanes.

#[macro_use]
mod alu;
mod ast;
mod error;
mod fault;
mod launch;
mod lexer;
mod lower;
mod machine;
mod module;
mod parser;
mod program;
mod tensor_map;
mod texture;
mod types;
mod write_set;

pub use error::Error;
pub use fault::{Fault, Location};
pub use launch::{AddressRange, DeviceLimits, Host, Launch};
pub use machine::access::install_fault_handler;
pub use machine::grid::Grid;
pub use machine::windows::is_window_address;
pub use module::{Entry, Global, Module, Parameter, Relocation};
pub use tensor_map::{TENSOR_MAP_BYTES, TensorMap};
pub use texture::{AddressMode, Image, TexelFormat, Texture, View, ViewKind};
pub use types::Space;
pub use write_set::write_sets;
