//! Programs whose GPU half the driver takes, and programs that were started without Rekindle.

mod amd;
mod bad;
mod container;
mod container_gpu;
mod container_prove;
mod containerd;
mod faults;
mod gpu;
mod pid;
mod recovery;
mod standin;
mod support;
