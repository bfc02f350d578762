//! How sandboxes begin and are ended.

pub mod kill;
pub mod run;
