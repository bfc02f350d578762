//! The emulated GPU: devices in software that run PTX on the CPU, behind the traits of `rekindle_device`.
//!
//! ```text
//!  Device calls ──▶ context: streams · events · captures · graphs ──▶ scheduler: tasks in order
//!                   modules: fatbin → PTX → rekindle_ptx                │ engines: compute · up · down · host · watch
//!                   space: reservations · mappings · host ranges ◀──────┘ executor: kernels (with a crew), copies, fills
//! ```
//!
//! Invariants:
//! - A device address is an address of this process. Device memory is memfds mapped at the addresses that the worker
//!   chooses; an exported descriptor keeps its contents beyond this process.
//! - Nothing that a program asks for ends this process: kernels and copies that meet unmapped or read-only pages make
//!   the context answer `CUDA_ERROR_ILLEGAL_ADDRESS` from then on, and [`rekindle_device::Device::fault`] says where.
//! - Calls that queue work return at once, unless a stream has as much as it takes; `query` calls never wait. A device
//!   without work takes no processor time.

mod access;
mod arena;
mod arrays;
mod atomics;
mod attributes;
mod capture;
mod common;
mod config;
mod context;
mod cooperative;
mod copy_engines;
mod device;
mod error;
mod fatbin;
mod function;
mod graph;
mod image;
mod launch;
mod module;
mod modules;
mod occupancy;
mod operations;
mod output;
mod parts;
mod physical;
mod platform;
mod prepared;
mod scheduler;
mod space;
mod stream;
mod tensor;
mod thread_pool;
mod views;
mod work;

pub use arena::{MODULE_RANGE, OPTION_MODULE_ADDRESS};
pub use config::{Config, VARIABLE};
pub use error::Error;
pub use platform::{platform, platform_with_output};
