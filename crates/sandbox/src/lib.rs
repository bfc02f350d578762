//! The CPU half of a sandbox: an unmodified program in namespaces of its own, taken and brought back by CRIU.
//!
//! ```text
//!  daemon ──spawns──▶ A (outer)          waits for B, passes TERM and INT on, exits with the program's status
//!    │                 └─▶ B (init)      pid 1 of the namespaces: reaps, runs CRIU, answers on init.sock
//!    │                      ├─▶ program  pid >= 1000, session leader, sees the run directory at /run/rekindle
//!    └──init.sock──────────▶└─▶ criu     inside the namespaces, for the time of a dump or a restore
//! ```
//!
//! Invariants:
//! - A and B outlive the daemon. A new daemon finds them through the run directory ([`Sandbox::adopt`]).
//! - Killing B kills everything in the sandbox: the kernel ends a pid namespace with its first process.
//! - A program is resumed after a failed dump, whoever failed: CRIU, the caller's hook, or a caller that died.
//! - A program has an IPC namespace of its own, apart from init's and CRIU's, so CRIU takes what is in it.
//! - Nothing in a dump depends on the run directory's path outside, so one dump restores under any name, and
//!   several times at once.
//! - CRIU may be killed while it dumps: it does not trace the program itself ([`tracer`]), and what it had changed is undone.
//!   We kill one that waits for a process that was killed meanwhile, which it would for ever ([`ending::Watch`]).

mod affinity;
pub mod amd;
pub mod aside;
mod assist;
mod attributes;
pub mod autobound;
pub mod capability;
mod connections;
mod conversation;
pub mod core_files;
mod criu;
mod descriptors;
mod devshm;
pub mod driver_socket;
mod dump;
mod ended_connections;
pub mod ending;
mod error;
mod exec;
mod ghost_file;
mod ghosts;
pub mod inherited;
mod init;
mod input;
mod inventory;
pub mod log;
pub mod log_index;
mod lost_names;
mod mapped_file;
pub mod memory;
mod message;
mod netlink;
mod network;
mod openfile;
mod outputs;
mod overlay;
mod page_scan;
pub mod pages;
mod peers;
mod ports;
pub mod process;
mod processor;
mod protection;
mod proto;
mod relay;
mod restore;
mod rpc;
mod sandbox;
mod severed;
mod socket_places;
pub mod soundness;
mod standing;
mod stat;
mod system_v;
mod tcp;
pub mod terminal;
pub mod timers;
mod tracer;
mod tree;
pub mod trial;
mod unfit;
mod waiting;
mod wire;
pub mod withheld;

pub use attributes::Attributes;
pub use criu::{Criu, MINIMUM_VERSION, Version};
pub use dump::{Cpu, DumpReport, DumpSpec, Frozen, Prepared};
pub use error::{Error, Result};
pub use exec::{EXEC_ARGUMENT, Ended, Guest, GuestTask, exec_main, pack, unpack};
pub use init::{INIT_ARGUMENT, LOG_PATH, RUN_PATH, init_main};
pub use inventory::{Inventory, Mismatch, PartialInventory};
pub use mapped_file::{Identity, KnownFiles, MappedFile};
pub use message::{DumpStats, Exit, NotStarted, Program, Step, User};
pub use network::{Addresses, Network};
pub use openfile::OpenFile;
pub use peers::connected;
pub use ports::who_listens;
pub use relay::{Images, RELAY_ARGUMENT, Relay, RelayStep, RelayedRequest, relay_main};
pub use restore::{ExternalSocket, ReadySandbox, RestoreReport, RestoreSpec, Restored};
pub use sandbox::{Adopted, Sandbox, Spec, Standard};
pub use standing::{GUARD_ARGUMENT, Guard, Stopped, guard_main};
pub use stat::Stat;
pub use tracer::{TRACER_ARGUMENT, tracer_main};
pub use tree::Tree;
pub use unfit::refuse_headless;
