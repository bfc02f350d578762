//! The program's `libcuda.so.1`: the CUDA driver API without a driver.
//!
//! Calls are answered here where the client knows the answer, and go through this thread's ring to the worker where
//! they concern the GPU:
//!
//! ```text
//!   exported function ─ export ── barrier ┬── own state: contexts, handles, memory map, devices
//!                                         └── lane ── ring ── worker
//!   control thread: worker's messages, checkpoint's barrier, worker's death
//!   call thread: host functions that streams have come to
//! ```
//!
//! Loading the library only notes that it is there (`pages`): it is preloaded into every process of a sandbox. The first
//! `cuInit` connects.
//! Nothing here panics across into C: [`export`] turns a panic into `CUDA_ERROR_UNKNOWN`.

#![allow(non_snake_case, reason = "exported functions have the driver's names")]

mod abi;
mod allocators;
mod arena;
mod array;
mod atomics;
mod capture;
mod connect;
mod context;
mod context_state;
mod control;
mod copy;
mod coredump;
mod data;
mod device;
mod driver;
mod event;
mod exchange;
mod export;
mod exports;
mod first_pages;
mod fork;
mod found_first;
mod genuine;
mod graph;
mod green;
mod host_call;
mod inherited;
mod ipc;
mod lane;
mod launch;
mod legacy;
mod logs;
mod memory;
mod module;
mod notification;
mod nvml;
mod occupancy;
mod pages;
mod python;
mod quiesce;
mod refusal;
mod report;
mod session;
mod shareable;
mod stream;
mod stream_value;
mod tables;
mod tensor_map;
mod texture;
mod thread;
mod thread_slot;
mod visible;
mod wake_request;
mod withheld;

/// By this symbol the sandbox knows our library from another `libcuda.so.1`.
#[unsafe(no_mangle)]
pub static rekindle_client: u32 = 1;
