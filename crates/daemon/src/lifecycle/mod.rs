//! How sandboxes begin, what is done in them, and how images are shown, verified and removed.

pub mod end;
mod error;
pub mod exec;
pub mod images;
mod mode;
pub mod portions;
pub mod run;
pub mod slices;

pub use error::LifecycleError;
