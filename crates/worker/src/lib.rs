//! The worker: the process that owns a program's GPU contexts.
//!
//! ```text
//!   daemon ──socket──▶ control thread ──commands──▶ dispatch thread ──▶ device(s)
//!   client ──socket──▶ client thread  ──commands──▶      ▲
//!   client ──rings (shared memory)───────────────────────┘
//! ```
//!
//! What a program has is its [`client`]; the contexts that it has them in are the process's ([`gpus`]). One dispatch
//! thread takes the requests of all of the program's threads in their order and gives them to the GPU; it alone touches
//! the client. The control thread obeys the daemon, one connection at a time; a worker outlives its daemon, and undoes a
//! checkpoint that the daemon's death left half done. A worker serves one client process, and ends with it or
//! serves [another one](serve); or several that [share](shared) its contexts.

mod arguments;
mod belongings;
mod client;
mod client_thread;
mod code;
mod control;
mod data;
mod demand;
mod dispatch;
mod driver_half;
mod exchange;
mod gpu;
mod gpu_link;
mod gpus;
mod hashing;
mod host_memory;
mod image;
mod ipc;
mod keeper;
mod link;
mod memory;
mod noted_device;
mod ondemand;
mod pressure;
mod printed;
mod serve;
mod shared;
mod start;
mod succession;
mod successor;
mod touched;
mod worker_page;

pub use arguments::{Arguments, ArgumentsError, Purpose};
pub use dispatch::Ended;
pub use gpu::{Gpu, OpenError, OpenedDriver};
pub use serve::serve;
pub use shared::serve as serve_shared;
pub use start::main;
