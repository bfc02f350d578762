//! What the CUDA driver API is, as data: result codes, the table of functions, plain structs. No behaviour and no
//! linking against CUDA.

mod description;
mod functions;
mod result;
pub mod types;

pub use functions::{DEBUGGER_FUNCTIONS, DEBUGGER_VARIABLES, Function, RENAMED, functions, listing};
pub use result::*;
