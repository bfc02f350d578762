//! `rekindled`: the daemon that holds sandboxes, workers and images.
//!
//! Threads and blocking I/O throughout: one thread a connection, one for each sandbox's end, one at each gate, one for
//! each worker's end. Everything that must outlive the daemon belongs to another process (init, worker) or lies on
//! disk (record, store), so that it may be killed at any moment; [`Daemon::open`] says what the next one does.
//!
//! | what | module |
//! | --- | --- |
//! | places on disk, one daemon a state directory | `places`, `lock` |
//! | sandboxes held, their records | `held`, `registry`, `record`, `names` |
//! | what users ask for | `server`, `run`, `checkpoint`, `restore`, `sleep`, `wake`, `kill`, `logs`, `images`, `doctor` |
//! | containers, by Podman and containerd | `container` |
//! | how checkpoints and restores went | `timeline`, `traces` |
//! | the CPU half's pages on demand, and what images share of them | `cpu_pages`, `shared_pages` |
//! | contents of images in memory | `caches` |
//! | images that apps start from | `framework` |
//! | GPU halves | `gate`, `worker`, `worker_pool`, `quiet` |
//! | what CRIU would wait for | `breakpoints` |

mod breakpoints;
mod caches;
mod checked;
mod checkpoint;
mod claims;
mod client_library;
mod clock;
mod container;
mod cpu_images;
mod cpu_pages;
mod daemon;
mod doctor;
mod driver_half;
mod error;
mod fault;
mod framework;
mod gate;
mod gpu;
mod held;
mod images;
mod kept;
mod kill;
mod load_order;
mod loading;
mod lock;
mod logs;
mod machine;
mod names;
mod own_name;
mod page_cache;
mod page_check;
mod places;
mod preflight;
mod process;
mod quiet;
mod record;
mod registry;
mod replacement;
mod reply;
mod resources;
mod restore;
mod roll;
mod room;
mod run;
mod server;
mod shared_pages;
mod sleep;
mod soundness;
mod timeline;
mod traces;
mod turn;
mod unwritten;
mod wake;
mod worker;
mod worker_pool;

pub use caches::{CacheLimits, parse_bytes};
pub use daemon::Daemon;
pub use doctor::{Finding, examine};
pub use error::{Error, Result};
pub use places::{LOG_MAX, Places, RUNS_VARIABLE, SOCKET_VARIABLE, STATE_VARIABLE};
pub use registry::ENDED_KEPT;
pub use rekindle_sandbox::log::Words;
pub use server::{listen, serve};
pub use worker_pool::PoolSize;
