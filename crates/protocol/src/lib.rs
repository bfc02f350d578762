//! What the parts of Rekindle say to each other.
//!
//! | between | carried by | module |
//! | --- | --- | --- |
//! | a program's thread → its worker | ring records | [`operation`] |
//! | client ↔ worker, beside the rings | a Unix socket, frames | [`client`] |
//! | daemon ↔ worker | a Unix socket, frames | [`worker`] |
//! | worker ↔ worker of the same sandbox | a Unix socket, frames | [`ipc`] |
//! | worker, daemon ↔ memory daemon | a Unix socket, frames | [`data`], [`exchange`] |
//! | memory daemon ↔ daemon | a Unix socket, frames | [`elsewhere`] |
//! | command line ↔ daemon | a Unix socket, frames | [`daemon`] |
//! | command line ↔ sandbox's init, for a terminal | a Unix socket, packets | [`terminal`] |
//!
//! And [`network`], what a program may be connected to, [`mounts`], which files it sees, [`service`], what is asked of services, [`workflow`], what they do one after the other, [`service_name`], how they are told apart, [`data_slot`], what requests to them may name, [`mending`], what is kept for the loss of a worker, [`rounds`], how a program is brought to a stand, [`tuning`], switches that they read, [`fault`], by which tests fail or kill any of them, [`descriptors`], which travel along with frames, [`peer`], who sends them, [`maps`], what the kernel says of their memory, and [`memory_file`], memory that they hand on.

pub mod client;
pub mod daemon;
pub mod data;
pub mod data_slot;
pub mod descriptors;
pub mod elsewhere;
pub mod exchange;
pub mod fault;
pub mod frame;
pub mod ipc;
pub mod maps;
pub mod memory_file;
pub mod mending;
pub mod mounts;
pub mod network;
pub mod operation;
pub mod peer;
pub mod rounds;
pub mod service;
pub mod service_name;
pub mod spawn;
pub mod tenant;
pub mod terminal;
pub mod tuning;
pub mod worker;
pub mod workflow;
