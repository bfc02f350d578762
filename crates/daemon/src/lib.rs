//! `rekindled`: the daemon that holds sandboxes, workers and images.
//!
//! Threads and blocking I/O throughout: one thread a connection, one for each sandbox's end, one at each admission socket, one for
//! each worker's end. Everything that must outlive the daemon belongs to another process (init, worker) or lies on
//! disk (record, store), so that it may be killed at any moment; [`Daemon::open`] says what the next one does.
//!
//! | what | folder |
//! | --- | --- |
//! | this machine: places on disk, locks, processes, GPUs | `host` |
//! | GPU workers, and those that wait for sandboxes | `workers`, `pool` |
//! | contents of images in memory | `caches` |
//! | what the daemon puts into images, and whether it is sound | `images` |
//! | sandboxes, their records, admission sockets and logs | `sandboxes` |
//! | what is done with them | `lifecycle`, `sleep`, `checkpoint`, `restore` |
//! | programs that are brought back after a failure | `recovery` |
//! | networks of sandboxes' own, and ports that lead there | `network` |
//! | images that apps start from | `frameworks` |
//! | containers, by Podman and containerd | `containers` |
//! | the command line's requests | `server` |

mod caches;
mod checkpoint;
mod claims;
mod connection_limit;
mod containers;
mod daemon;
mod error;
mod events;
mod fault;
mod frameworks;
mod host;
mod images;
mod lifecycle;
mod network;
mod pool;
mod recovery;
mod reply;
mod restore;
mod sandboxes;
mod server;
mod sleep;
mod timeline;
mod workers;

pub use caches::{CacheLimits, parse_bytes};
pub use daemon::Daemon;
pub use error::{Error, Result};
pub use host::doctor::{Finding, examine};
pub use host::places::{LOG_MAX, Places, RUNS_VARIABLE, SOCKET_VARIABLE, STATE_VARIABLE};
pub use network::PUBLISH_WAIT;
pub use pool::PoolSize;
pub use rekindle_sandbox::log::Words;
pub use sandboxes::registry::ENDED_KEPT;
pub use server::{listen, serve};
