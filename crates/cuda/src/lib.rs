//! What the CUDA driver API is, as data: result codes, constants, plain structs. No behaviour and no linking against CUDA.

mod result;

pub use result::*;
