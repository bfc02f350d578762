//! `rekindled`: the daemon that holds sandboxes, workers and images.
//!
//! Threads and blocking I/O throughout: one thread a connection, one for each sandbox's end, one at each admission socket, one for
//! each worker's end. Everything that must outlive the daemon belongs to another process (init, worker) or lies on
//! disk (record, store), so that it may be killed at any moment; [`Daemon::open`] says what the next one does.
//!
//! Each folder uses those before it in this table, in its own row too, and no other; only `error` names what each folder's own
//! errors are, to wrap them (`scripts/layers` checks that):
//!
//! | what | folder |
//! | --- | --- |
//! | what goes wrong, faults on purpose | `error`, `fault` |
//! | what is in use, how many may be connected, phases, answers | `claims`, `connection_limit`, `timeline`, `reply` |
//! | this machine: places on disk, locks, processes, GPUs | `host` |
//! | who is told of what happens, and of requests to services; what is counted | `events`, `access_log`, `tally` |
//! | other nodes, and connections to them | `peers` |
//! | objects of stores in memory | `data` |
//! | GPU workers | `workers` |
//! | contents of images in memory | `caches` |
//! | contexts that programs share | `contexts` |
//! | workers that wait for sandboxes | `pool` |
//! | what the daemon puts into images, and whether it can be used here | `images` |
//! | networks of sandboxes' own, and ports that lead there | `network` |
//! | sandboxes, their records, admission sockets and logs | `sandboxes` |
//! | requests to services as spans of traces | `spans` |
//! | images that apps start from | `frameworks` |
//! | what the daemon has | `daemon` |
//! | giving GPUs back and getting them again | `sleep` |
//! | programs moved between GPUs | `migration` |
//! | how sandboxes begin; images shown and removed | `lifecycle` |
//! | programs brought back | `restore` |
//! | images taken | `checkpoint` |
//! | programs that are brought back after a failure | `recovery` |
//! | programs moved to other nodes | `nodes` |
//! | whose services are whose | `tenants` |
//! | services that scale to zero | `services` |
//! | containers, by Podman and containerd | `containers` |
//! | who has how much GPU memory; what Prometheus is told of all that, and what a browser shows | `gpu_map`, `metrics`, `page` |
//! | the command line's requests, and what an earlier daemon left | `server` |

mod access_log;
mod caches;
mod checkpoint;
mod claims;
mod connection_limit;
mod containers;
mod contexts;
mod daemon;
mod data;
mod error;
mod events;
mod fault;
mod frameworks;
mod gpu_map;
mod host;
mod images;
mod lifecycle;
mod metrics;
mod migration;
mod network;
mod nodes;
mod page;
mod peers;
mod pool;
mod recovery;
mod reply;
mod restore;
mod sandboxes;
mod server;
mod services;
mod sleep;
mod spans;
mod tally;
mod tenants;
mod timeline;
mod workers;

pub use caches::{CacheLimits, parse_bytes};
pub use daemon::{Daemon, ServiceSettings};
pub use data::DataLimits;
pub use error::{Error, Result};
pub use host::doctor::{Finding, examine};
pub use host::paths::{
    CONTEXT_KEEP, LOG_MAX, PUBLISH_WAIT, Paths, RUNS_VARIABLE, SOCKET_VARIABLE, STATE_VARIABLE,
};
pub use nodes::listen as listen_to_nodes;
pub use page::{PageSettings, open as open_page, parse_page_address};
pub use pool::PoolSize;
pub use rekindle_sandbox::log::Words;
pub use sandboxes::registry::ENDED_KEPT;
pub use server::{listen, serve};
