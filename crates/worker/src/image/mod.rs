//! The GPU half of an image: writing it, and building a worker's state from it.
//!
//! | part | holds |
//! | --- | --- |
//! | `worker-state`, "worker-state" | [`state::State`]: all but contents |
//! | `gpu-buffer`, named by address | a handle of the heap: a large allocation or a slab |
//! | `gpu-buffer`, "physical-N" | a handle that the program made itself |
//! | `gpu-buffer`, "array-N" | a CUDA array's levels, one after the other |
//! | `gpu-buffer`, "globals-N" | the globals and constants of the module that was loaded Nth, one after the other |
//! | `module`, named by hash | code that came from no file |
//! | `module`, "kernels" | kernels of modules in pieces, as they were cut and loaded |
//! | `pinned`, named as the file | pinned host memory |

mod arrays;
mod bare;
mod beside;
mod block;
mod block_pool;
mod cache;
mod cache_fill;
mod code_parts;
mod code_pre_copy;
mod contents;
mod copy_out;
mod cut;
mod declared;
mod disk;
mod drain;
mod enqueued_copies;
mod error;
mod graph_part;
mod guard;
mod hashed;
mod hidden;
mod kernels;
mod lent;
mod load_pipeline;
mod loading;
mod partial;
mod pinned;
mod pre_copy;
mod progress;
mod reference;
mod resident;
mod restore;
mod restore_code;
mod restore_memory;
mod runs;
mod save;
mod save_code;
mod save_memory;
mod shadow;
mod source;
mod state;
mod timer;
mod transfer_path;
mod uncollected;
mod unwritten;
mod upload;
mod waves;
mod whole;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

pub(crate) use bare::{Physical, forget_bare, save_bare};
pub(crate) use block::{Preparing, Registered};
pub(crate) use block_pool::BlockPool;
pub(crate) use cache::CacheMemories;
pub(crate) use cache_fill::{fill_cache, make_cache_memory};
pub(crate) use code_pre_copy::CodePreCopy;
pub(crate) use contents::stock;
pub(crate) use drain::Shadow;
pub(crate) use error::{Error, LoadingError};
pub(crate) use loading::{Loading, Outcome};
pub(crate) use pinned::{MOST_PINNED, save_pinned};
pub(crate) use pre_copy::{PreCopy, begin as begin_ahead, rooms};
pub(crate) use progress::Progress;
pub(crate) use resident::{Registering, register};
pub(crate) use restore::{RestoreOptions, restore};
pub(crate) use runs::Unused;
pub(crate) use save::{blocks, save};
pub(crate) use timer::Timer;
pub(crate) use transfer_path::has_room;
pub(crate) use unwritten::{Marks, mark, unwritten};
pub(crate) use upload::upload;

/// Memory that outlives the worker that made it, by the names of the parts that it is in place of.
pub(crate) type LeftMemory = HashMap<String, OwnedFd>;

/// How often whoever waits looks whether that is still wanted.
const LOOK: Duration = Duration::from_millis(50);
/// The name of the one part of kind `worker-state`.
const STATE_PART: &str = "worker-state";
