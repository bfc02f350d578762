//! Functions without Python. A library of them is loaded by `rekindle-runner`, and called as functions in Python are.
//!
//! ```no_run
//! use rekindle_function::{Call, Function, Result, Scope, Value, functions};
//!
//! struct Sum;
//!
//! impl Function for Sum {
//!     type Instance = ();
//!
//!     fn setup(_: &Scope<'_>) -> Result<Sum> {
//!         Ok(Sum)
//!     }
//!
//!     fn enter(&self, _: &Scope<'_>) -> Result<()> {
//!         Ok(())
//!     }
//!
//!     fn call<'m>(&self, _: &mut (), call: &Call<'m>) -> Result<Value<'m>> {
//!         Ok(call.array(0)?.elements::<f64>()?.iter().sum::<f64>().into())
//!     }
//! }
//!
//! functions! { c"sum" => Sum }
//! # fn main() {}
//! ```
//!
//! The crate that has this is a `cdylib`. What the runner and a library say to each other is [`abi`]; arguments and
//! results are [`message`]s.

pub mod abi;
pub mod driver;
pub mod dtype;
mod error;
mod function;
pub mod message;
mod scope;
mod value;

pub use error::{Error, Result};
pub use function::{Function, row, split};
pub use scope::{Call, EXPIRY, Mapped, Range, Scope};
pub use value::{Array, Pairs, Reference, Value};
