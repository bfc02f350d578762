//! This machine: where things lie on it, what runs on it, what it has.

pub mod breakpoints;
pub mod client_library;
pub mod clock;
pub mod doctor;
mod error;
pub mod gpu;
pub mod gpu_usage;
pub mod limits;
pub mod lock;
pub mod mounts;
mod opencl;
pub mod own_name;
pub mod paths;
pub mod private_socket;
pub mod process;
pub mod records;
pub mod replace;
pub mod resources;
pub mod usage;

pub use error::{HostError, MountError};
