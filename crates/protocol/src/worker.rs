//! Daemon ↔ worker. The worker listens on a socket of its own in the run directory, so that the next daemon finds it
//! again; one request is answered before the next is read. The daemon's end closing in the middle of a checkpoint
//! undoes it: the client resumes.

use std::collections::BTreeMap;

use rekindle_device::DeviceInfo;
use serde::{Deserialize, Serialize};

use crate::client::Quiesced;
pub use crate::frame::MOST_DESCRIPTORS;

/// Socket in the run directory where the worker with this number listens.
pub fn socket_name(worker: u32) -> String {
    format!("worker-{worker}.sock")
}

/// What becomes of the order in which requests name parts of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recording {
    #[default]
    None,
    /// It is noted to the end, for `Uses`.
    Asked,
    /// It is noted up to the first quiet moment, and added to the image's load order.
    Learned,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    Status,
    /// With a descriptor for what kernels print: a worker that waited in a pool belongs to a sandbox from now on, and
    /// outlives the daemon. Answered by its `Status`.
    Take,
    /// Do what can be done of this image's `Restore` before it is asked for. The worker is then good for that alone, and for images
    /// that begin alike. With
    /// `register` the image lies in memory, and its contents are made known to the GPU, which goes on after the answer.
    Prepare {
        image: String,
        #[serde(default)]
        register: bool,
    },
    /// What workers may have done of this image's restore for other images too. Answered by `Surveyed`.
    Survey {
        image: String,
    },
    /// Load the module of this image that has this key, for whoever takes this worker.
    LoadAhead {
        image: String,
        key: String,
    },
    /// Unload those that wait under these keys.
    UnloadAhead {
        keys: Vec<String>,
    },
    /// With a descriptor: the worker's end of a client's socket. Serve that process; its files are in `run_directory`.
    Serve {
        run_directory: String,
    },
    /// Quiesce the client, finish its pending work, and hold everything still until `Resume`. `leave_memory`: contents of
    /// GPU memory will not be copied.
    Quiesce {
        limit_ms: u64,
        leave_memory: bool,
    },
    /// Detach or attach the driver half of the process with this pid (as this worker sees it).
    Detach {
        pid: i32,
        limit_ms: u32,
    },
    Attach {
        pid: i32,
    },
    /// Write the GPU half into the staged image at this path: buffers, modules, globals, streams, events, graphs.
    Save {
        staging: String,
        /// Leave the contents of buffers where they are: `Sleep` is to follow.
        leave_memory: bool,
    },
    /// Write the pinned memory into the staged image. Only while the program is frozen.
    SavePinned {
        staging: String,
    },
    /// How the next `Restore` loads contents of buffers. `order`: names of parts, those first that are loaded first.
    /// `run_ahead`: requests of the program need not wait for all of them, only for those that they name. `record`:
    /// whether to note in which order requests name them. With a descriptor: a file in memory for the worker's journal,
    /// without which no request runs ahead.
    OnDemand {
        run_ahead: bool,
        order: Vec<String>,
        record: Recording,
    },
    /// The record that was asked for, answered by `Uses`.
    Uses,
    /// Change all buffers a little: whatever is written to them is seen then. The program is good for nothing else any more.
    Mark,
    /// Which buffers still hold what the image at this path has of them, or were not written to since they were marked,
    /// answered by `Unwritten`. `cheaply`: only where the device finds out by itself.
    Unwritten {
        image: String,
        cheaply: bool,
    },
    /// Map no memory that other workers have mapped too: copy it.
    Unshare,
    /// Take the state of the GPU half from the image at this path. `devices[i]` of the image becomes device `i` here.
    /// Answered when all is in its place but the contents of buffers, which go on loading; until they are there,
    /// requests of the program wait.
    Restore {
        image: String,
        run_directory: String,
        /// What of the image lies in memories that came with [`Request::Cache`]; the rest is read from the store.
        #[serde(default)]
        cached: Vec<Cached>,
    },
    /// With a descriptor for each: memories that caches are kept in. Those of the host are mapped, and with `register`
    /// made known to the GPU, for the life of the worker; those of a GPU are used for the next `Restore` alone.
    Cache {
        memories: Vec<CacheMemory>,
        register: bool,
    },
    /// Make memory for a cache. Answered by `Made`. The worker has it mapped until it has loaded an image.
    MakeCacheMemory {
        memory: CacheMemory,
    },
    /// Let go of all GPU memory of caches.
    LeaveCaches,
    /// With a descriptor: memory from `MakeCacheMemory`. Load chunks of the image, checked, to where they are to lie in it.
    FillCache {
        image: String,
        memory: CacheMemory,
        into: Vec<Cached>,
        /// Where the chunks may be found already.
        cached: Vec<Cached>,
    },
    /// Answered with the phases since `Restore` when the contents of buffers are there. The worker ends if they cannot
    /// be loaded.
    Loaded,
    /// Take the state as for `Restore`, in place of a worker that was killed before it had loaded all. The program runs
    /// already; its requests wait for `GoOn`.
    Replace {
        image: String,
        run_directory: String,
    },
    /// After `Replace` and `Loaded`, with two descriptors: the worker's end of the client's socket, and the journal of
    /// the worker before.
    GoOn {
        pid: i32,
    },
    /// With a descriptor, after `Restore`: the client's socket, as CRIU has restored its other end.
    Adopt {
        pid: i32,
        driver_attached: bool,
    },
    /// Give the GPU back, after `Quiesce` and `Save`: the process goes on without it as a keeper of the client's socket
    /// and of the memory that was left. Its connections end; those made then are answered by the keeper.
    Sleep,
    /// To a keeper: what it keeps, from so many descriptors on. Answered by `Kept`.
    HandOver {
        from: usize,
    },
    /// With descriptors: memory for the next `Restore`, by the names of the parts that it is in place of.
    Memory {
        names: Vec<String>,
    },
    /// Let the client go on.
    Resume {
        restored: bool,
        driver_attached: bool,
    },
    Shutdown,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Response {
    Done,
    Status(Status),
    Quiesced(Quiesced),
    /// Parts as the store describes them, and the phases' times.
    Saved {
        parts: Vec<serde_json::Value>,
        phases: Vec<Phase>,
    },
    Restored {
        phases: Vec<Phase>,
    },
    /// With one descriptor for each name, at most [`MOST_DESCRIPTORS`]; none when there are no more. The one without a
    /// name is the client's socket.
    Kept {
        names: Vec<String>,
    },
    /// The modules that may be loaded before it is known for whom, and a mark for each step of what modules and streams
    /// depend on: images whose marks begin alike are alike so far.
    Surveyed {
        modules: Vec<CommonModule>,
        course: Vec<u64>,
    },
    /// With a descriptor of new memory.
    Made,
    /// Names of parts, the one named first first.
    Uses {
        names: Vec<String>,
    },
    /// Names of parts; none where it would have taken long.
    Unwritten {
        names: Option<Vec<String>>,
    },
    /// One sentence: what was found, what was expected, what to do.
    Failed(String),
}

/// A module that may be loaded before it is known for whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommonModule {
    /// The same for all that have the same code, which is loaded in the same way.
    pub key: String,
    /// Of its code.
    pub bytes: u64,
}

/// A memory that a cache is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheMemory {
    /// The daemon gives each number once.
    pub number: u32,
    pub bytes: u64,
    /// The program's number of the GPU that it lies on; none for memory of the host.
    pub device: Option<usize>,
}

/// Bytes of each chunk that is cached, but for a part's last one, and of the room that it takes.
pub const CACHE_SLOT: u64 = 2 << 20;

/// Consecutive chunks of a part that lie one after the other in a cache's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cached {
    pub part: String,
    /// The number of the first chunk within its part.
    pub first: u64,
    pub count: u64,
    pub memory: u32,
    /// Of the first chunk in the memory, bytes.
    pub offset: u64,
    /// The row is all of the part and all of the memory, and nobody is expected to write there: rather than copied from,
    /// the memory may be mapped, read-only, for as long as the worker likes.
    #[serde(default)]
    pub share: bool,
}

/// A step of a checkpoint or restore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Who works on it; steps of one lane follow each other, lanes go on side by side.
    #[serde(default)]
    pub lane: String,
    pub name: String,
    /// Microseconds since the checkpoint or restore began, where known to the sender; else since its request.
    pub start_us: u64,
    pub duration_us: u64,
    pub bytes: u64,
    /// How many of the bytes came from where, if that was a choice.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub from: BTreeMap<String, u64>,
    /// What it was made of, where that says more than a size.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// The lanes that this step did nothing but wait for.
    #[serde(default)]
    pub waited_for: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// It is a keeper: the GPU half of its client sleeps.
    #[serde(default)]
    pub asleep: bool,
    /// It has started again after a fault of its program's that was to be mended.
    #[serde(default)]
    pub mended: bool,
    /// It was restored, and its client was not let go on yet.
    #[serde(default)]
    pub held_back: bool,
    pub pid: i32,
    /// The client's pid as the worker sees it, 0 without a client.
    pub client: i32,
    pub gpu: String,
    pub gpu_uuid: String,
    pub driver: String,
    /// The GPUs that the program sees, in its order, and the free memory of each in bytes.
    #[serde(default)]
    pub devices: Vec<DeviceInfo>,
    #[serde(default)]
    pub free_bytes: Vec<u64>,
    /// Bytes of device memory that the program holds, how many of them are a cache's, mapped, and of pinned memory.
    pub device_bytes: u64,
    #[serde(default)]
    pub shared_bytes: u64,
    pub pinned_bytes: u64,
    pub buffers: u64,
    pub modules: u64,
    pub streams: u64,
    pub events: u64,
    pub graphs: u64,
    pub operations: u64,
}
