//! How sandboxes begin and are ended, and what is done in them meanwhile.

pub mod exec;
pub mod kill;
pub mod run;
